"""Metrics: what Prometheus asks for, in RabbitMQ's names and in ours.

`families` says what a metric is, `server_metrics` and `stream_metrics` which there are, `scrape`
makes an answer of them, `dashboard` draws them.
"""
