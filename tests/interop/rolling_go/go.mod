module streamd/interop

go 1.22

require github.com/rabbitmq/rabbitmq-stream-go-client v1.8.3
