# What each unit test links with, one line a program:
#   test/unit/NAME_test: src/room/module.o
test/unit/outcome_test: src/policy/outcome.o src/policy/answer_headers.o src/policy/http_date.o src/policy/rules.o
test/unit/breaker_test: src/policy/breaker.o src/policy/rate_limit.o
test/unit/failing_test: src/policy/failing.o
test/unit/throttle_test: src/policy/throttle.o src/policy/rate_limit.o
test/unit/backoff_test: src/worker/backoff.o
test/unit/clock_test: src/worker/clock.o
test/unit/networks_test: src/policy/networks.o
test/unit/batch_answer_test: src/policy/batch_answer.o src/policy/answer_headers.o src/policy/http_date.o
test/unit/ascii_test: src/handler/url.o src/policy/answer_headers.o src/policy/batch_answer.o src/policy/http_date.o src/policy/networks.o
test/unit/printable_test: src/format/printable.o
test/unit/topic_test: src/stage/topic.o src/handler/url.o
test/unit/deadline_test: src/http/deadline.o
test/unit/cron_test: src/schedule/cron.o
test/unit/recurrence_test: src/schedule/recurrence.o src/schedule/cron.o
test/unit/watermark_test test/unit/watermark_model_test: src/consume/watermark.o
test/unit/order_model_test: src/dispatch/order.o
test/unit/order_model_test: UNIT_LIBS = -Wl,--defsym=ExceptionalCondition=unit_assert_failed
test/unit/http1_parser_test: test/unit/http1_corpus.h test/unit/http1_record.h test/unit/turkish.h src/http/fast/http1_parser.o

# The transports are tested whole, with threads for the receiver.
WHOLE_HTTP = $(addprefix test/unit/,transport_harness.h transport_storm.h hostile_server.h tls_wire.h http2_server.h encoded_answers.h turkish.h) $(filter-out src/http/module.o,$(HTTP_OBJS))
HTTP_TESTS = $(addprefix test/unit/,transport_test connections_test transport_tls_test http1_corpus_test wire_test http2_test)
$(HTTP_TESTS): $(WHOLE_HTTP)
$(HTTP_TESTS): UNIT_LIBS = $(CURL_FLAGS) $(HTTP_EXTRA_LIBS) -lssl -lcrypto -lpthread -ldl
test/unit/http1_corpus_test: test/unit/http1_corpus.h
