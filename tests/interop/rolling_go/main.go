// Publishes numbers with a name, and reads them, while the nodes of a cluster are started again one
// after the other. It ends when its input does, and says what became of them.
package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/ha"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

const (
	batch   = 20
	pause   = 100 * time.Millisecond
	patience = 120 * time.Second
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func numbersUntil(over chan struct{}, name string, environment *stream.Environment) (sent int, failed int, again int) {
	told := make(chan *stream.ConfirmationStatus, 10_000)
	options := stream.NewProducerOptions().SetProducerName("p").SetClientProvidedName("p")
	producer, err := ha.NewReliableProducer(environment, name, options, func(statuses []*stream.ConfirmationStatus) {
		for _, status := range statuses {
			told <- status
		}
	})
	must(err)
	for {
		select {
		case <-over:
			must(producer.Close())
			return
		default:
		}
		for is_done := false; !is_done; { // in order: what is sent again must not come after later ones
			waiting := map[int64]bool{}
			for number := sent + 1; number <= sent+batch; number++ {
				one := amqp.NewMessage([]byte(strconv.Itoa(number)))
				one.SetPublishingId(int64(number))
				waiting[int64(number)] = true
				if producer.Send(one) != nil {
					failed++
				}
			}
			is_done = true
			for end := time.After(patience); len(waiting) > 0; {
				select {
				case status := <-told:
					if id := status.GetPublishingId(); waiting[id] {
						is_done = is_done && status.IsConfirmed()
						delete(waiting, id)
					}
				case <-end:
					panic(fmt.Sprintf("nobody says what became of %d messages", len(waiting)))
				}
			}
			if !is_done {
				again += batch
			}
		}
		sent += batch
		time.Sleep(pause)
	}
}

func main() {
	uris := []string{}
	for _, port := range strings.Split(os.Getenv("STREAM_PORTS"), ",") {
		uris = append(uris, "rabbitmq-stream://guest:guest@localhost:"+port+"/")
	}
	environment, err := stream.NewEnvironment(stream.NewEnvironmentOptions().SetUris(uris))
	must(err)
	name := os.Getenv("STREAM")
	var lock sync.Mutex
	seen, doubled := map[string]bool{}, 0
	consumer, err := ha.NewReliableConsumer(environment, name,
		stream.NewConsumerOptions().SetOffset(stream.OffsetSpecification{}.First()).SetClientProvidedName("c"),
		func(_ stream.ConsumerContext, one *amqp.Message) {
			lock.Lock()
			defer lock.Unlock()
			if text := string(one.GetData()); seen[text] {
				doubled++
			} else {
				seen[text] = true
			}
		})
	must(err)
	over := make(chan struct{})
	go func() {
		_, _ = io.ReadAll(os.Stdin)
		close(over)
	}()
	fmt.Println("ready")
	sent, failed, again := numbersUntil(over, name, environment)
	count := func() int {
		lock.Lock()
		defer lock.Unlock()
		return len(seen)
	}
	for end := time.Now().Add(patience); count() < sent && time.Now().Before(end); {
		time.Sleep(pause)
	}
	_ = consumer.Close()
	fmt.Println("sent", sent, "failed", failed, "again", again, "read", count(), "twice", doubled)
}
