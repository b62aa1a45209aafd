"""A client for RabbitMQ streams, for asyncio and trio programs."""
