/*-------------------------------------------------------------------------
 *
 * latency.c
 *		From a commit that the client has been told of to the request's
 *		arrival at the receiver, one message at a time on an idle server.
 *
 *		latency CONNINFO PORT RECORD N
 *
 * The receiver appends arrival time and id of each request to RECORD
 * (receiver --record).  Beside each message, in turn, a bare POST goes to
 * the same receiver over a connection that is kept open; it is timed the
 * same way, from before it is sent to its arrival.  Prints microseconds:
 *		message p50 p99 bare p50 p99
 *
 *-------------------------------------------------------------------------
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

static int64_t
now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t) t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void
die(const char *what)
{
	fprintf(stderr, "latency: %s\n", what);
	exit(1);
}

static int
connect_to(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET,.sin_port = htons(port)};
	int			one = 1;
	int			fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || connect(fd, (struct sockaddr *) &address, sizeof(address)) != 0)
		die("cannot connect to the receiver");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

/* Post once over the open connection; returns when that began. */
static int64_t
post(int fd, const char *id)
{
	char		buf[1024];
	int			len = snprintf(buf, sizeof(buf),
							   "POST / HTTP/1.1\r\nhost: 127.0.0.1\r\nwebhook-id: %s\r\n"
							   "content-type: application/json\r\ncontent-length: 12\r\n\r\n{\"n\": 12345}", id);
	int64_t		begin = now_us();

	if (write(fd, buf, len) != len || read(fd, buf, sizeof(buf)) <= 0)
		die("the receiver does not answer");
	return begin;
}

/* Wait until the record has a line for id; returns its time. */
static int64_t
arrival(FILE *record, const char *id)
{
	char		line[256];
	char		seen[128];
	long long	at;

	for (int tries = 0; tries < 100000; tries++)
	{
		long		begin = ftell(record);

		clearerr(record);
		for (; fgets(line, sizeof(line), record) != NULL; begin = ftell(record))
		{
			/* A line can be seen before its end is there. */
			if (strchr(line, '\n') == NULL)
			{
				fseek(record, begin, SEEK_SET);
				break;
			}
			if (sscanf(line, "%lld %127s", &at, seen) == 2 && strcmp(seen, id) == 0)
				return at;
		}
		usleep(50);
	}
	die("a message did not arrive");
	return 0;
}

static int
compare(const void *a, const void *b)
{
	int64_t		x = *(const int64_t *) a;
	int64_t		y = *(const int64_t *) b;

	return (x > y) - (x < y);
}

int
main(int argc, char **argv)
{
	PGconn	   *conn;
	FILE	   *record;
	int64_t    *messages;
	int64_t    *bare;
	int			n;
	int			fd;

	if (argc != 5)
		die("usage: latency CONNINFO PORT RECORD N");
	conn = PQconnectdb(argv[1]);
	if (PQstatus(conn) != CONNECTION_OK)
		die(PQerrorMessage(conn));
	fd = connect_to(atoi(argv[2]));
	record = fopen(argv[3], "r");
	if (record == NULL)
		die("cannot read the record");
	n = atoi(argv[4]);
	messages = calloc(n, sizeof(int64_t));
	bare = calloc(n, sizeof(int64_t));

	for (int i = 0; i < n; i++)
	{
		PGresult   *result;
		int64_t		committed;
		char		id[64];

		result = PQexec(conn, "SELECT outbox.stage('bench.message.sent', '{\"n\": 12345}')");
		committed = now_us();
		if (PQresultStatus(result) != PGRES_TUPLES_OK)
			die(PQerrorMessage(conn));
		snprintf(id, sizeof(id), "%s", PQgetvalue(result, 0, 0));
		PQclear(result);
		messages[i] = arrival(record, id) - committed;

		snprintf(id, sizeof(id), "bare-%d-%d", (int) getpid(), i);
		committed = post(fd, id);
		bare[i] = arrival(record, id) - committed;
		usleep(2000 + rand() % 3000);
	}
	qsort(messages, n, sizeof(int64_t), compare);
	qsort(bare, n, sizeof(int64_t), compare);
	printf("message %lld %lld bare %lld %lld longest %lld\n",
		   (long long) messages[n / 2], (long long) messages[n * 99 / 100],
		   (long long) bare[n / 2], (long long) bare[n * 99 / 100], (long long) messages[n - 1]);
	PQfinish(conn);
	return 0;
}
