# outbox: PGXS build of two libraries.  outbox is loaded by the server;
# outbox_http, which alone links libcurl, only by the dispatcher.
#
# make -f /path/to/Makefile builds outside of the source tree; every path to
# a source file says so.
here := $(dir $(firstword $(MAKEFILE_LIST)))
# Files of the tree by a pattern, as paths below its top.
files = $(patsubst $(here)%,%,$(sort $(wildcard $(addprefix $(here),$(1)))))

EXTENSION = outbox
EXTVERSION = $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(here)outbox.control)

MODULE_big = outbox
HTTP_OBJS = $(patsubst %.c,%.o,$(call files,src/http/*.c src/http/*/*.c))
OBJS = $(filter-out $(HTTP_OBJS),$(patsubst %.c,%.o,$(call files,src/*.c src/*/*.c src/*/*/*.c)))

DATA_built = sql/outbox--$(EXTVERSION).sql
# Scripts that lead here from released versions, and those versions as they were:
# CREATE EXTENSION outbox VERSION '...' makes one that is to be updated.
DATA = $(call files,sql/upgrade/outbox--*--*.sql) $(filter-out %/outbox--$(EXTVERSION).sql,$(call files,sql/released/outbox--*.sql))

# test/regress/expected is the folder expected at the top, where pg_regress
# looks as well; setup makes what the others share.
REGRESS = setup $(filter-out setup,$(patsubst test/regress/sql/%.sql,%,$(call files,test/regress/sql/*.sql)))
REGRESS_OPTS = --inputdir=$(here)test/regress --load-extension=outbox

EXTRA_CLEAN = sql/outbox--*.sql outbox_http$(DLSUFFIX) $(HTTP_OBJS) $(UNIT_TESTS) $(UNIT_MODULE) $(BENCH_TOOLS)

PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers -Wno-clobbered
PG_CPPFLAGS = -I$(srcdir:/=)/src -DOUTBOX_TRANSPORT_ABI=$(TRANSPORT_ABI)
# What the two libraries have to agree on.
TRANSPORT_ABI := $(firstword $(shell cksum < $(here)src/http/transport.h))
ifdef WERROR
PG_CFLAGS += -Werror
endif

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# Ed25519 signatures are OpenSSL's, where the server has it.
ifeq ($(with_ssl),openssl)
SHLIB_LINK += -lcrypto
endif

all: outbox_http$(DLSUFFIX)

sql/outbox--$(EXTVERSION).sql: sql/install/outbox.sql
	$(MKDIR_P) $(@D)
	cp $< $@

# In a build outside of the source tree the folders are made first.
ifneq ($(here),./)
$(shell mkdir -p $(sort $(dir $(OBJS) $(HTTP_OBJS)) test/unit/server test/bench))
endif

# The HTTP library sees no header of the server, but for the module's magic block.
HTTP_CFLAGS = -fPIC $(HTTP_VISIBILITY) -I$(srcdir:/=)/src $(shell pkg-config --cflags libcurl) $(HTTP_EXTRA_CFLAGS)
HTTP_LIBS = $(shell pkg-config --libs libcurl) $(HTTP_EXTRA_LIBS)
# Answers in a content coding are decoded where zlib's headers are.
ifeq ($(shell pkg-config --exists zlib && echo yes),yes)
HTTP_EXTRA_CFLAGS += -DOUTBOX_HAVE_ZLIB $(shell pkg-config --cflags zlib)
HTTP_EXTRA_LIBS += $(shell pkg-config --libs zlib)
endif
# TLS connections are guarded where libcurl's OpenSSL can be watched.
ifeq ($(shell pkg-config --exists openssl && echo yes),yes)
HTTP_EXTRA_CFLAGS += -DOUTBOX_HAVE_OPENSSL $(shell pkg-config --cflags openssl)
HTTP_EXTRA_LIBS += $(shell pkg-config --libs openssl)
endif
HTTP_VISIBILITY = -fvisibility=hidden
# It has assertions where the server has them: a failed one takes all of its processes down.
ifneq ($(shell grep -c 'define USE_ASSERT_CHECKING 1' $(includedir_server)/pg_config.h),1)
HTTP_CFLAGS += -DNDEBUG
endif
$(HTTP_OBJS): %.o: %.c
	$(CC) $(CFLAGS) $(HTTP_CFLAGS) -c -o $@ $<
# Before PostgreSQL 16 PGDLLEXPORT says nothing of visibility.
src/http/module.o: HTTP_VISIBILITY =
src/http/module.o: HTTP_CFLAGS += $(CPPFLAGS)

outbox_http$(DLSUFFIX): $(HTTP_OBJS)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $(HTTP_OBJS) $(HTTP_LIBS)

install: install-http
install-http: outbox_http$(DLSUFFIX)
	$(MKDIR_P) '$(DESTDIR)$(pkglibdir)'
	$(INSTALL_SHLIB) $< '$(DESTDIR)$(pkglibdir)/outbox_http$(DLSUFFIX)'
uninstall: uninstall-http
uninstall-http:
	rm -f '$(DESTDIR)$(pkglibdir)/outbox_http$(DLSUFFIX)'
.PHONY: install-http uninstall-http

# Unit tests of the pure modules: programs that print TAP.  unit.mk says
# which objects each of them links with.
UNIT_TESTS = $(patsubst %.c,%,$(call files,test/unit/*_test.c))
# A copy without the tests, as in a container image, builds all the same.
-include $(here)test/unit/unit.mk
$(UNIT_TESTS): %: %.c test/unit/tap.h
	$(CC) $(CPPFLAGS) $(CFLAGS) $(PG_CFLAGS) -I$(srcdir)/test/unit -o $@ $(filter %.c %.o,$^) -L$(pkglibdir) -L$(libdir) -lpgcommon -lpgport $(UNIT_LIBS) -lm

# Modules that need a backend are tested through a library that test/t builds and loads.
# It has its own variables, wherever the library that has them too is loaded.
UNIT_MODULE = test/unit/server/outbox_unit$(DLSUFFIX)
$(UNIT_MODULE): test/unit/server/outbox_unit.c src/common/fault.o src/shared/pull_state.o $(filter src/format/%.o src/policy/%.o,$(OBJS))
	$(CC) $(CPPFLAGS) $(CFLAGS) $(PG_CFLAGS) $(CFLAGS_SL) -shared -Wl,-Bsymbolic -o $@ $^ $(LDFLAGS) $(SHLIB_LINK)
unit-module: $(UNIT_MODULE)

# The library with another version of one file of it, for the test of upgrades.
other-library: $(filter-out src/common/sql_version.o,$(OBJS))
	$(CC) $(CPPFLAGS) $(CFLAGS) $(PG_CFLAGS) $(CFLAGS_SL) -shared -o $(OTHER_LIBRARY) $(OTHER_SOURCE) $^ $(LDFLAGS) $(SHLIB_LINK)
.PHONY: other-library

# What is given away: the last commit as PGXN takes it, with META.json below one
# folder, and nothing else.  Needs git and no PostgreSQL.
DISTVERSION = $(shell sed -n 's/^   "version": "\(.*\)",/\1/p' $(here)META.json)
DISTNAME = outbox-$(DISTVERSION)
DISTDIR = build
dist:
	mkdir -p $(DISTDIR)
	@git -C $(here) diff --quiet HEAD || echo "Not in it: what is not committed."
	git -C $(here) archive --format=zip --prefix=$(DISTNAME)/ HEAD > $(DISTDIR)/$(DISTNAME).zip
	git -C $(here) archive --format=tar --prefix=$(DISTNAME)/ HEAD | gzip -9n > $(DISTDIR)/$(DISTNAME).tar.gz
	@cd $(DISTDIR) && sha256sum $(DISTNAME).zip $(DISTNAME).tar.gz

# doc/releasing.md
release:
	$(here)packaging/release.pl cut '$(VERSION)'
	$(MAKE) -s -f $(here)Makefile dist
	@echo "To be done once everything has passed on this commit:"
	@echo "  git tag -a v$(DISTVERSION) -m 'outbox $(DISTVERSION)' $$(git -C $(here) rev-parse --short HEAD) && git push origin HEAD v$(DISTVERSION)"
next:
	$(here)packaging/release.pl next '$(VERSION)'
.PHONY: dist release next

unit-check: $(UNIT_TESTS)
	prove -e '' $(addprefix ./,$(UNIT_TESTS))
.PHONY: unit-check unit-module

# Everything that reads what a receiver or a user writes, under libFuzzer, so many seconds
# each: make fuzz FUZZ_SECONDS=60.  fuzz-http1 is the parser of answers;
# fuzz-policy what they say: Retry-After and dates, outbox-outcome, answers to
# batches, and the text that is kept of them.  fuzz-cron is the rules of schedules.
FUZZ_SECONDS ?= 60
FUZZ_CC ?= clang
FUZZ_CFLAGS = -g -O1 -Wno-ignored-attributes -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined
FUZZ_RUN = -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/ -print_final_stats=1
FUZZ_POLICY = $(addprefix src/policy/,answer_headers.c batch_answer.c http_date.c outcome.c rules.c) src/format/printable.c
build/fuzz/receiver_fuzz: test/unit/fuzz/receiver_fuzz.c $(FUZZ_POLICY)
	$(MKDIR_P) build/fuzz
	$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_CFLAGS) -o $@ $^ -L$(pkglibdir) -L$(libdir) -lpgcommon -lpgport $(UNIT_LIBS) -lm
build/fuzz/http1_fuzz: test/unit/fuzz/http1_fuzz.c test/unit/http1_record.h src/http/fast/http1_parser.c src/http/fast/http1_parser.h
	$(MKDIR_P) build/fuzz
	$(FUZZ_CC) -I$(srcdir)/src $(FUZZ_CFLAGS) -o $@ $(filter %.c,$^)
fuzz-policy: build/fuzz/receiver_fuzz
	$(MKDIR_P) build/fuzz/receiver_corpus
	build/fuzz/receiver_fuzz $(FUZZ_RUN) -max_len=1024 -dict=test/unit/fuzz/receiver.dict build/fuzz/receiver_corpus
fuzz-http1: build/fuzz/http1_fuzz
	$(MKDIR_P) build/fuzz/http1_corpus
	build/fuzz/http1_fuzz $(FUZZ_RUN) -max_len=2048 -dict=test/unit/fuzz/http1.dict build/fuzz/http1_corpus
build/fuzz/cron_fuzz: test/unit/fuzz/cron_fuzz.c src/schedule/cron.c src/schedule/cron.h
	$(MKDIR_P) build/fuzz
	$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_CFLAGS) -o $@ $(filter %.c,$^) -L$(pkglibdir) -L$(libdir) -lpgcommon -lpgport
fuzz-cron: build/fuzz/cron_fuzz
	$(MKDIR_P) build/fuzz/cron_corpus
	build/fuzz/cron_fuzz $(FUZZ_RUN) -max_len=128 -dict=test/unit/fuzz/cron.dict build/fuzz/cron_corpus
fuzz: fuzz-http1 fuzz-policy fuzz-cron
.PHONY: fuzz fuzz-policy fuzz-http1 fuzz-cron

# Everything is built anew when a header changes; that takes half a minute.
$(OBJS) $(HTTP_OBJS): $(call files,src/*.h src/*/*.h src/*/*/*.h)

# Programs the benchmarks and load tests use; none of them sees the server.
BENCH_TOOLS = test/bench/receiver test/bench/curl_loop test/bench/transport_loop test/bench/latency
BENCH_CFLAGS = -O2 -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers -Wno-clobbered -Wno-missing-braces
CURL_FLAGS = $(shell pkg-config --cflags --libs libcurl)
test/bench/receiver: test/bench/receiver.c
	$(CC) $(BENCH_CFLAGS) -o $@ $<
test/bench/curl_loop: test/bench/curl_loop.c test/bench/load.h
	$(CC) $(BENCH_CFLAGS) -o $@ $< $(CURL_FLAGS)
test/bench/transport_loop: test/bench/transport_loop.c test/bench/load.h $(filter-out src/http/module.o,$(HTTP_OBJS))
	$(CC) $(BENCH_CFLAGS) -I$(srcdir)/src -o $@ $(filter %.c %.o,$^) $(CURL_FLAGS) $(HTTP_EXTRA_LIBS)
test/bench/latency: test/bench/latency.c
	$(CC) $(BENCH_CFLAGS) -o $@ $< $(shell pkg-config --cflags --libs libpq)
bench-tools: $(BENCH_TOOLS)
.PHONY: bench-tools
