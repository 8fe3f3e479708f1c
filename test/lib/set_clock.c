/*-------------------------------------------------------------------------
 *
 * set_clock.c
 *		A wall clock that a test can set, for the processes of one server.
 *
 * Preloaded (LD_PRELOAD), it adds to the time of day the seconds that stand,
 * as an int64_t, in the file named by SET_CLOCK_FILE.  The file is mapped, so
 * what is written into it counts at once in every process.  The monotonic
 * clock stays as it is, as it does when somebody sets the clock.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t none = 0;
static const volatile int64_t *offset = &none;

__attribute__((constructor))
static void
map_offset(void)
{
	const char *name = getenv("SET_CLOCK_FILE");
	int			fd = name != NULL ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void	   *map = fd >= 0 ? mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;

	if (map != MAP_FAILED)
		offset = map;
	if (fd >= 0)
		close(fd);
}

int
clock_gettime(clockid_t clock, struct timespec *t)
{
	int			result = (int) syscall(SYS_clock_gettime, clock, t);

	if (result == 0 && clock == CLOCK_REALTIME)
		t->tv_sec += *offset;
	return result;
}

int
gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *t)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (t != NULL)
		*t = now.tv_sec;
	return now.tv_sec;
}
