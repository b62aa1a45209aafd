module streamd/interop

go 1.22

require github.com/Azure/go-amqp v1.7.0
