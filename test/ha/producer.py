#!/usr/bin/python3
"""A producer that goes on through a failover: producer.py CONNINFO NUMBER LOG

Each transaction inserts a business row and stages a message of it, a few hundred
a second, with keys of its own, until SIGTERM.  The log says "begun N" before and
"committed N TIME" only after COMMIT has returned: a number that was begun and not
said to be committed may be either.  Numbers begin at NUMBER and are never used
again.  After an error, or 3 s without an answer, it connects anew, to the first of
the servers that accepts writes.
"""
import select
import signal
import sys
import time

import psycopg2
import psycopg2.extensions

PATIENCE = 3
PAUSE = 0.01

going = True


def stop(signum, frame):
    global going
    going = False


class NoAnswer(Exception):
    pass


def wait_a_while(connection):
    """Wait for the server, which may stand still, but not for ever."""
    end = time.time() + PATIENCE
    while True:
        state = connection.poll()
        if state == psycopg2.extensions.POLL_OK:
            return
        left = end - time.time()
        if left <= 0:
            raise NoAnswer()
        fd = [connection.fileno()]
        if state == psycopg2.extensions.POLL_READ:
            select.select(fd, [], [], left)
        else:
            select.select([], fd, [], left)


def connect(conninfo, turn):
    """One server after the other: what waits for a connection tries no next one."""
    settings = psycopg2.extensions.parse_dsn(conninfo)
    hosts, ports = settings["host"].split(","), settings["port"].split(",")
    at = turn % len(hosts)
    return psycopg2.connect(**dict(settings, host=hosts[at], port=ports[at]))


def run(conninfo, work):
    """Call work(connection) again and again, with another connection after each failure."""
    psycopg2.extensions.set_wait_callback(wait_a_while)
    signal.signal(signal.SIGTERM, stop)
    connection, turn = None, 0
    while going:
        try:
            if connection is None:
                connection = connect(conninfo, turn)
            work(connection)
        except (psycopg2.Error, NoAnswer):
            if connection is not None:
                try:
                    connection.close()
                except psycopg2.Error:
                    pass
            connection = None
            turn += 1
            time.sleep(0.02)


def main():
    conninfo, number = sys.argv[1], int(sys.argv[2])
    log = open(sys.argv[3], "a", buffering=1)
    place = number

    def work(connection):
        nonlocal number
        number += 1
        log.write("begun %d\n" % number)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO purchase (n) VALUES (%s)", (number,))
            cursor.execute(
                "SELECT outbox.stage('shop.purchase', jsonb_build_object('n', %s), %s)",
                (number, "%d-%d" % (place, number % 5)),
            )
        connection.commit()
        log.write("committed %d %.3f\n" % (number, time.time()))
        time.sleep(PAUSE)

    run(conninfo, work)


if __name__ == "__main__":
    main()
