"""The logic of the queue, written once as flows; `RedisStreamsQueue`, `QueueConsumer` and their twins drive it."""

from conquiet.queue.flows.delivery import Delivery
from conquiet.queue.flows.operations import StreamOperations

__all__ = ["Delivery", "StreamOperations"]
