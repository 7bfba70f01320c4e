"""An effect that happens once although the job runs three times: one worker is killed during the job, one run fails.

`app.context.connection` is in a transaction in the store's own database; the worker acknowledges the job inside it and
commits both together. If anything fails before that commit, neither the effect nor the acknowledgement is stored.

Prints:

    run 1: the worker is killed after the effect, before the acknowledgement
    run 2: an error after the effect
    run 3: done
    invoices in the database: 1
"""

import os
import sqlite3
import subprocess
import sys

from conquiet import Conquiet
from conquiet.jobs import RetrySchedule

app = Conquiet("sqlite:///shop.db", retry=RetrySchedule(base_seconds=0.1))


@app.task
def bill(order: int) -> None:
    app.context.connection.execute("INSERT INTO invoices VALUES (?)", (order,))
    match app.context.version:  # incremented at every delivery of the job
        case 1:
            print("run 1: the worker is killed after the effect, before the acknowledgement", flush=True)
            os.kill(os.getpid(), 9)
        case 2:
            print("run 2: an error after the effect")
            raise RuntimeError("the printer is on fire")
    print("run 3: done")


def main() -> None:
    with sqlite3.connect("shop.db") as database:
        database.execute("CREATE TABLE invoices (order_number INTEGER)")
    bill.enqueue(7)
    app.close()
    # The first worker is another process, because it will not survive.
    subprocess.run([sys.executable, __file__, "work"], check=False)
    app.worker(lease_ttl=2).run_until_idle(
        wait_for_delayed=True
    )  # takes the job over when its lease has lapsed
    app.close()
    print("invoices in the database:", database.execute("SELECT count(*) FROM invoices").fetchone()[0])
    database.close()


if __name__ == "__main__":
    if "work" in sys.argv:
        app.worker(lease_ttl=2).run()
    else:
        main()
