#!/usr/bin/env python3
"""A consumer of a pull handler, with psycopg 3: consumer.py <handler>

Where the database is, libpq's variables say (PGHOST, PGDATABASE, ...).
Ends when it is told to (SIGTERM, SIGINT), or with --once when nothing is
left to claim.

The work here is a row in the table ledger.  It commits together with the
receipt of its message or not at all, so each message is entered exactly
once, however often consumers die.
"""
import signal
import sys

import psycopg
from psycopg.rows import namedtuple_row


class Hopeless(Exception):
    """The message can never be dealt with."""


class LeaseLost(Exception):
    """Another consumer has the message, and its work counts."""


def work(db, message):
    """What the business does with a message.  An error means: not now."""
    amount = message.payload.get("amount")
    if not isinstance(amount, (int, float)):
        raise Hopeless("amount is not a number")
    db.execute(
        "INSERT INTO ledger (message_id, account, amount) VALUES (%s, %s, %s)",
        (message.id, message.payload["account"], amount),
    )


def handle(db, handler, message):
    claimed = (handler, message.id, message.attempt)
    try:
        with db.transaction():
            work(db, message)
            if not db.execute("SELECT outbox.complete(%s, %s, %s)", claimed).fetchone()[0]:
                raise LeaseLost
    except LeaseLost:
        pass
    except Hopeless as error:
        db.execute("SELECT outbox.fail(%s, %s, %s, 'bad_payload', %s)", (*claimed, str(error)))
    except Exception as error:
        code = getattr(error, "sqlstate", None) or "error"
        db.execute("SELECT outbox.retry(%s, %s, %s, %s, error => %s)", (*claimed, code, str(error)))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.splitlines()[0])
    handler = sys.argv[1]
    once = "--once" in sys.argv
    stopping = False

    def stop(*_):
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

    # autocommit: a claim is committed at once, and wait() may be called.
    with psycopg.connect(autocommit=True) as db:
        while not stopping:
            messages = (
                db.cursor(row_factory=namedtuple_row)
                .execute("SELECT id, attempt, topic, payload FROM outbox.claim(%s, 10)", (handler,))
                .fetchall()
            )
            for message in messages:
                handle(db, handler, message)
            if not messages:
                if once:
                    break
                # Short, so that a signal is heeded.
                db.execute("CALL outbox.wait(%s, '2 s')", (handler,))


if __name__ == "__main__":
    main()
