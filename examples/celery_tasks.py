"""Tasks of Celery 5 in a stream. First start `streamd serve`, then a worker in this folder.

celery -A celery_tasks worker --without-gossip --without-mingle

Then: python -c 'from celery_tasks import add; add.delay(1, 2)'
"""

from celery import Celery
from kombu import Queue

app = Celery("celery_tasks", broker="amqp://guest:guest@localhost:5672//")
app.conf.task_default_queue = "work"
app.conf.task_queues = [
    Queue(
        "work",
        queue_arguments={"x-queue-type": "stream"},
        consumer_arguments={"x-stream-offset": "next"},
    )
]
app.conf.worker_enable_remote_control = False  # it would declare queues that are not streams


@app.task(ignore_result=True)
def add(first: int, second: int) -> None:
    print(first + second)
