#!/usr/bin/python3
"""A consumer that goes on through a failover: consumer.py CONNINFO HANDLER LOG

Claims, commits, completes, commits, until SIGTERM.  The log says "claimed N ATTEMPT
TIME" once a claim is committed, and "completed N" once the commit of the completion
has returned.
"""
import sys
import time

from producer import run


def main():
    conninfo, handler = sys.argv[1:3]
    log = open(sys.argv[3], "a", buffering=1)

    def work(connection):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT id, attempt, payload ->> 'n' FROM outbox.claim(%s, 20, '3 s')",
                (handler,),
            )
            claimed = cursor.fetchall()
        connection.commit()
        now = time.time()
        for _, attempt, number in claimed:
            log.write("claimed %s %d %.3f\n" % (number, attempt, now))
        if not claimed:
            time.sleep(0.02)
            return
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT outbox.complete_many(%s, %s::uuid[], %s::int[])",
                (handler, [c[0] for c in claimed], [c[1] for c in claimed]),
            )
            completed = cursor.fetchone()[0]
        connection.commit()
        for (_, _, number), counts in zip(claimed, completed):
            if counts:
                log.write("completed %s\n" % number)

    run(conninfo, work)


if __name__ == "__main__":
    main()
