"""AMQP 0-9-1 connections of the server: streams as queues. The protocol is in wire.amqp091."""
