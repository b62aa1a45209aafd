"""AMQP 0-9-1 connections of the server: streams as queues. The protocol itself is in amqp091."""
