// What the Go client does against a running server; a line "ok NAME" for each part.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

var first = stream.OffsetSpecification{}.First()

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(condition bool, what string) {
	if !condition {
		panic(what)
	}
}

func until(condition func() bool, what string) {
	for end := time.Now().Add(15 * time.Second); !condition(); time.Sleep(10 * time.Millisecond) {
		check(time.Now().Before(end), what+" did not come true")
	}
}

func port(name string) int {
	number, err := strconv.Atoi(os.Getenv(name))
	must(err)
	return number
}

func options() *stream.EnvironmentOptions {
	return stream.NewEnvironmentOptions().SetHost("localhost").SetPort(port("STREAM_PORT")).
		SetUser("guest").SetPassword("guest")
}

func with(options *stream.EnvironmentOptions, work func(*stream.Environment)) {
	environment, err := stream.NewEnvironment(options)
	must(err)
	defer environment.Close()
	work(environment)
}

// Messages that came, in their order.
type received struct {
	lock  sync.Mutex
	texts []string
}

func (r *received) handle(_ stream.ConsumerContext, m *amqp.Message) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.texts = append(r.texts, string(m.GetData()))
}

func (r *received) count() int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return len(r.texts)
}

func (r *received) same(expected []string) {
	until(func() bool { return r.count() >= len(expected) }, fmt.Sprintf("%d messages", len(expected)))
	time.Sleep(100 * time.Millisecond)
	check(fmt.Sprint(r.texts) == fmt.Sprint(expected), fmt.Sprintf("%v, not %v", r.texts, expected))
}

func numbers(count int) []string {
	texts := make([]string, count)
	for n := range texts {
		texts[n] = strconv.Itoa(n)
	}
	return texts
}

func publish(env *stream.Environment, name string, options *stream.ProducerOptions, messages ...*amqp.AMQP10) {
	producer, err := env.NewProducer(name, options)
	must(err)
	confirms := producer.NotifyPublishConfirmation()
	for _, one := range messages {
		must(producer.Send(one))
	}
	for confirmed := 0; confirmed < len(messages); {
		for _, status := range <-confirms {
			check(status.IsConfirmed(), "a message is not confirmed")
			confirmed++
		}
	}
	must(producer.Close())
}

func messages(texts []string) []*amqp.AMQP10 {
	made := make([]*amqp.AMQP10, len(texts))
	for n, text := range texts {
		made[n] = amqp.NewMessage([]byte(text))
	}
	return made
}

func consume(env *stream.Environment, name string, options *stream.ConsumerOptions) (*received, *stream.Consumer) {
	got := &received{}
	consumer, err := env.NewConsumer(name, got.handle, options)
	must(err)
	return got, consumer
}

func fromFirst() *stream.ConsumerOptions {
	return stream.NewConsumerOptions().SetOffset(first).SetCRCCheck(true)
}

func publishAndConfirm(env *stream.Environment, name string) {
	publish(env, name, nil, messages(numbers(1000))...)
	got, _ := consume(env, name, fromFirst())
	got.same(numbers(1000))
	got, _ = consume(env, name, stream.NewConsumerOptions().SetOffset(stream.OffsetSpecification{}.Offset(990)))
	got.same(numbers(1000)[990:])
}

func deduplication(env *stream.Environment, name string) {
	made := messages([]string{"1", "2", "2", "1", "3"})
	for n, id := range []int64{1, 2, 2, 1, 3} {
		made[n].SetPublishingId(id)
	}
	producer, err := env.NewProducer(name, stream.NewProducerOptions().SetProducerName("p"))
	must(err)
	for _, one := range made { // the client reports each publishing id once, so confirms are not counted
		must(producer.Send(one))
	}
	until(func() bool { sequence, err := env.QuerySequence("p", name); return err == nil && sequence == 3 }, "3")
	must(producer.Close())
	got, _ := consume(env, name, fromFirst())
	got.same([]string{"1", "2", "3"})
}

func subBatches(env *stream.Environment, name string) {
	kinds := stream.Compression{}
	var expected []string
	for _, kind := range []stream.Compression{kinds.None(), kinds.Gzip(), kinds.Snappy(), kinds.Lz4(), kinds.Zstd()} {
		options := stream.NewProducerOptions().SetSubEntrySize(20).SetCompression(kind)
		publish(env, name, options, messages(numbers(100))...)
		expected = append(expected, numbers(100)...)
	}
	got, _ := consume(env, name, fromFirst())
	got.same(expected)
}

func filtering(env *stream.Environment, name string) {
	value := stream.NewProducerFilter(func(m message.StreamMessage) string {
		return fmt.Sprint(m.GetApplicationProperties()["carrier"])
	})
	for _, carrier := range []string{"HA", "UA", "HA"} {
		one := amqp.NewMessage([]byte(carrier))
		one.ApplicationProperties = map[string]any{"carrier": carrier}
		publish(env, name, stream.NewProducerOptions().SetFilter(value), one)
	}
	publish(env, name, nil, amqp.NewMessage([]byte("none")))
	all := func(*amqp.Message) bool { return true }
	got, _ := consume(env, name, fromFirst().SetFilter(stream.NewConsumerFilter([]string{"HA"}, false, all)))
	got.same([]string{"HA", "HA"})
	got, _ = consume(env, name, fromFirst().SetFilter(stream.NewConsumerFilter([]string{"HA"}, true, all)))
	got.same([]string{"HA", "HA", "none"})

	// A chunk of both comes whole: the consumer has to test each message.
	both := messages([]string{"HA", "UA"})
	for n, carrier := range []string{"HA", "UA"} {
		both[n].ApplicationProperties = map[string]any{"carrier": carrier}
	}
	publish(env, name, stream.NewProducerOptions().SetFilter(value), both...)
	wanted := func(m *amqp.Message) bool { return m.ApplicationProperties["carrier"] == "HA" }
	got, _ = consume(env, name, fromFirst().SetFilter(stream.NewConsumerFilter([]string{"HA"}, false, wanted)))
	got.same([]string{"HA", "HA", "HA"})
}

func offsetTracking(env *stream.Environment, name string) {
	publish(env, name, nil, messages(numbers(10))...)
	must(env.StoreOffset("app", name, 6))
	until(func() bool { offset, err := env.QueryOffset("app", name); return err == nil && offset == 6 }, "the offset")
	_, err := env.QueryOffset("none", name)
	check(err == stream.OffsetNotFoundError, "an offset that was never stored was found")
}

func statistics(env *stream.Environment, name string) {
	stats, err := env.StreamStats(name)
	must(err)
	_, err = stats.FirstOffset()
	check(err != nil, "an empty stream has a first offset")
	publish(env, name, nil, messages(numbers(10))...)
	stats, err = env.StreamStats(name)
	must(err)
	committed, err := stats.CommittedChunkId()
	must(err)
	check(committed >= 0, "there is no committed chunk")
}

func superStream(env *stream.Environment, name string) {
	must(env.DeclareSuperStream(name, stream.NewPartitionsOptions(3)))
	partitions, err := env.QueryPartitions(name)
	must(err)
	check(fmt.Sprint(partitions) == fmt.Sprintf("[%s-0 %s-1 %s-2]", name, name, name), "partitions")
	route, err := env.QueryRoute(name, "1")
	must(err)
	check(fmt.Sprint(route) == fmt.Sprintf("[%s-1]", name), "route")
	key := func(m message.StreamMessage) string { return string(m.GetData()[0]) }
	producer, err := env.NewSuperStreamProducer(name, stream.NewSuperStreamProducerOptions(stream.NewHashRoutingStrategy(key)))
	must(err)
	for _, one := range messages(numbers(60)) {
		must(producer.Send(one))
	}
	got := &received{}
	consumer, err := env.NewSuperStreamConsumer(name, got.handle, stream.NewSuperStreamConsumerOptions().SetOffset(first))
	must(err)
	until(func() bool { return got.count() >= 60 }, "60 messages")
	must(producer.Close())
	expected := numbers(60)
	sort.Strings(expected)
	sort.Strings(got.texts)
	got.same(expected)
	must(consumer.Close())
	must(env.DeleteSuperStream(name))
}

func singleActiveConsumer(env *stream.Environment, name string) {
	publish(env, name, nil, messages(numbers(10))...)
	join := func() (*received, *stream.Consumer) {
		turn := func(string, bool) stream.OffsetSpecification { return first }
		return consume(env, name, stream.NewConsumerOptions().SetConsumerName("app").
			SetSingleActiveConsumer(stream.NewSingleActiveConsumer(turn)))
	}
	one, consumer := join()
	one.same(numbers(10))
	other, _ := join()
	time.Sleep(300 * time.Millisecond)
	check(other.count() == 0, "two are active")
	must(consumer.Close())
	other.same(numbers(10))
}

// Several publish and consume one stream while others come and go beside it.
func concurrency(env *stream.Environment, name string) {
	var tasks sync.WaitGroup
	start := func(work func()) {
		tasks.Add(1)
		go func() {
			defer tasks.Done()
			work()
		}()
	}
	bodies := func(writer string) []string {
		texts := numbers(200)
		for n := range texts {
			texts[n] = writer + texts[n]
		}
		return texts
	}
	readers := make([]*received, 3)
	for n := range readers {
		readers[n], _ = consume(env, name, fromFirst())
	}
	for _, writer := range []string{"a", "b", "c"} {
		start(func() { publish(env, name, nil, messages(bodies(writer))...) })
	}
	for _, other := range []string{name + "-x", name + "-y"} {
		start(func() {
			for n := range 10 {
				must(env.DeclareStream(other, stream.NewStreamOptions()))
				publish(env, other, nil, messages([]string{strconv.Itoa(n)})...)
				got, consumer := consume(env, other, fromFirst())
				got.same([]string{strconv.Itoa(n)})
				must(consumer.Close())
				must(env.DeleteStream(other))
			}
		})
	}
	tasks.Wait()
	for _, reader := range readers {
		until(func() bool { return reader.count() >= 600 }, "600 messages")
		reader.same(readers[0].texts)
		for _, writer := range []string{"a", "b", "c"} {
			own := slices.DeleteFunc(slices.Clone(reader.texts), func(text string) bool { return text[:1] != writer })
			check(slices.Equal(own, bodies(writer)), fmt.Sprint(own))
		}
	}
}

// Messages to offset 19 were seen; those from 10 on were lost with the machine.
func gap(env *stream.Environment, _ string) {
	name := os.Getenv("GAP_STREAM")
	stored, err := env.QueryOffset("app", name)
	must(err)
	check(stored == 9, "the stored offset is not that of the last message")
	publish(env, name, nil, messages(numbers(3))...)
	for _, offset := range []int64{10, 15, 20} {
		got, _ := consume(env, name, stream.NewConsumerOptions().SetOffset(stream.OffsetSpecification{}.Offset(offset)))
		got.same(numbers(3))
	}
}

func insideTLS(_ *stream.Environment, name string) {
	pem, err := os.ReadFile(os.Getenv("CA_FILE"))
	must(err)
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: authorities, ServerName: "localhost"}
	with(options().SetPort(port("TLS_PORT")).IsTLS(true).SetTLSConfig(config), func(env *stream.Environment) {
		publish(env, name, nil, messages(numbers(100))...)
		got, _ := consume(env, name, fromFirst())
		got.same(numbers(100))
	})
}

func main() {
	parts := []struct {
		name string
		work func(*stream.Environment, string)
	}{
		{"publish_and_confirm", publishAndConfirm},
		{"deduplication", deduplication},
		{"sub_batches", subBatches},
		{"filtering", filtering},
		{"offset_tracking", offsetTracking},
		{"statistics", statistics},
		{"super_stream", superStream},
		{"single_active_consumer", singleActiveConsumer},
		{"concurrency", concurrency},
		{"gap", gap},
		{"tls", insideTLS},
	}
	for _, part := range parts {
		with(options(), func(env *stream.Environment) {
			name := "go-" + part.name
			if part.name != "super_stream" {
				must(env.DeclareStream(name, stream.NewStreamOptions()))
			}
			part.work(env, name)
			fmt.Println("ok", part.name)
		})
	}
}
