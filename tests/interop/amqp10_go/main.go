// go-amqp against a running server: streams over AMQP 1.0. Prints "ok NAME" for each part.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/Azure/go-amqp"
)

const filters = "amqp:application-properties-filter"

type server struct {
	ctx        context.Context
	conn       *amqp.Conn
	session    *amqp.Session
	management *management
}

type management struct {
	sender   *amqp.Sender
	receiver *amqp.Receiver
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(found, wanted any) {
	if !reflect.DeepEqual(found, wanted) {
		panic(fmt.Sprintf("found %#v, expected %#v", found, wanted))
	}
}

func open(ctx context.Context, address string, options *amqp.ConnOptions) *server {
	options.SASLType = amqp.SASLTypePlain("guest", "guest")
	conn, err := amqp.Dial(ctx, address, options)
	check(err)
	session, err := conn.NewSession(ctx, nil)
	check(err)
	return &server{ctx, conn, session, nil}
}

// The link pair of the management node; the receiver first, so that its credit is there in time.
func (s *server) pair() *management {
	properties := map[string]any{"paired": true}
	sending, receiving := amqp.SenderSettleModeSettled, amqp.SenderSettleModeSettled
	receiver, err := s.session.NewReceiver(s.ctx, "/management", &amqp.ReceiverOptions{
		Name: "management", Properties: properties, RequestedSenderSettleMode: &receiving,
		TargetAddress: "/management", Credit: 10,
	})
	check(err)
	sender, err := s.session.NewSender(s.ctx, "/management", &amqp.SenderOptions{
		Name: "management", Properties: properties, SettlementMode: &sending, SourceAddress: "/management",
	})
	check(err)
	return &management{sender, receiver}
}

func (s *server) request(method, path string, body any, status string) any {
	if s.management == nil {
		s.management = s.pair()
	}
	if body == nil {
		body = amqp.Null{}
	}
	replyTo := "$me"
	message := &amqp.Message{Value: body, Properties: &amqp.MessageProperties{
		MessageID: uint64(7), To: &path, Subject: &method, ReplyTo: &replyTo,
	}}
	check(s.management.sender.Send(s.ctx, message, nil))
	answer, err := s.management.receiver.Receive(s.ctx, nil)
	check(err)
	expect(answer.Properties.CorrelationID, uint64(7))
	expect(*answer.Properties.Subject, status)
	expect(answer.ApplicationProperties["http:response"], "1.1")
	return answer.Value
}

func (s *server) create(name string) {
	arguments := map[string]any{"x-queue-type": "stream", "x-stream-filter-size-bytes": uint32(32)}
	s.request("PUT", "/queues/"+name, map[string]any{"durable": true, "arguments": arguments}, "201")
}

func (s *server) sender(target string) *amqp.Sender {
	sender, err := s.session.NewSender(s.ctx, target, nil)
	check(err)
	return sender
}

// Publishes them all, then waits for the outcome of each.
func (s *server) publish(target string, messages ...*amqp.Message) {
	sender := s.sender(target)
	var receipts []amqp.SendReceipt
	for _, message := range messages {
		receipt, err := sender.SendWithReceipt(s.ctx, message, nil)
		check(err)
		receipts = append(receipts, receipt)
	}
	for _, receipt := range receipts {
		state, err := receipt.Wait(s.ctx)
		check(err)
		expect(state, &amqp.StateAccepted{})
	}
	check(sender.Close(s.ctx))
}

func (s *server) receiver(stream string, credit int32, filters ...amqp.LinkFilter) *amqp.Receiver {
	receiver, err := s.session.NewReceiver(s.ctx, "/queues/"+stream, &amqp.ReceiverOptions{
		Credit: credit, Filters: filters,
	})
	check(err)
	return receiver
}

// The first messages that a link gets, each accepted. Credit is given once: what go-amqp gives by itself
// may come after the detach.
func (s *server) take(stream string, count int, filters ...amqp.LinkFilter) []*amqp.Message {
	receiver := s.receiver(stream, -1, filters...)
	check(receiver.IssueCredit(uint32(count)))
	var found []*amqp.Message
	for range count {
		message, err := receiver.Receive(s.ctx, nil)
		check(err)
		check(receiver.AcceptMessage(s.ctx, message))
		found = append(found, message)
	}
	check(receiver.Close(s.ctx))
	return found
}

func filter(name string, value any) amqp.LinkFilter { return amqp.NewLinkFilter(name, 0, value) }

func from(value any) amqp.LinkFilter { return filter("rabbitmq:stream-offset-spec", value) }

func text(body string) *amqp.Message { return amqp.NewMessage([]byte(body)) }

func numbers(first, last int) (messages []*amqp.Message) {
	for n := first; n < last; n++ {
		message := text(fmt.Sprint(n))
		message.ApplicationProperties = map[string]any{"n": int64(n), "even": n%2 == 0}
		message.Annotations = amqp.Annotations{"x-stream-filter-value": []string{"even", "odd"}[n%2]}
		messages = append(messages, message)
	}
	return
}

func bodies(messages []*amqp.Message) (found []string) {
	for _, message := range messages {
		found = append(found, string(message.GetData()))
	}
	return
}

func offsets(messages []*amqp.Message) (found []int64) {
	for _, message := range messages {
		found = append(found, message.Annotations["x-stream-offset"].(int64))
	}
	return
}

func refused(err error, condition amqp.ErrCond) {
	var failed *amqp.Error
	var link *amqp.LinkError
	var session *amqp.SessionError
	if errors.As(err, &link) {
		failed = link.RemoteErr
	} else if errors.As(err, &session) {
		failed = session.RemoteErr
	} else {
		errors.As(err, &failed)
	}
	if failed == nil || failed.Condition != condition {
		panic(fmt.Sprintf("found %v, expected %s", err, condition))
	}
}

func publishAndConfirm(s *server) {
	s.create("confirmed")
	s.publish("/queues/confirmed", numbers(0, 500)...)
	found := s.take("confirmed", 500, from("first"))
	expect(bodies(found), bodies(numbers(0, 500)))
	expect(offsets(found)[499], int64(499))
	shown := s.request("GET", "/queues/confirmed", nil, "200").(map[string]any)
	expect(shown["type"], "stream")
}

func offsetsOf(s *server) {
	s.create("offsets")
	s.publish("/queues/offsets", numbers(0, 100)...)
	expect(offsets(s.take("offsets", 3, from(uint64(50)))), []int64{50, 51, 52})
	expect(offsets(s.take("offsets", 1, from(time.Now().Add(-time.Hour)))), []int64{0})
	expect(offsets(s.take("offsets", 1, from("1h"))), []int64{0})
	next := s.receiver("offsets", 1, from("next"))
	s.publish("/queues/offsets", text("new"))
	message, err := next.Receive(s.ctx, nil)
	check(err)
	expect(string(message.GetData()), "new")
	check(next.Close(s.ctx))
	_, err = s.session.NewReceiver(s.ctx, "/queues/offsets", &amqp.ReceiverOptions{
		Filters: []amqp.LinkFilter{from("somewhere")},
	})
	refused(err, amqp.ErrCondPreconditionFailed)
}

func filtering(s *server) {
	s.create("filtered")
	s.publish("/queues/filtered", numbers(0, 10)...)
	found := s.take("filtered", 5, from("first"), filter(filters, map[string]any{"even": false}))
	expect(offsets(found), []int64{1, 3, 5, 7, 9})
	sql := amqp.NewLinkFilter("sql-filter", 0x120, "n > 3 AND even")
	found = s.take("filtered", 3, from("first"), sql, filter("rabbitmq:stream-filter", []any{"even"}))
	expect(offsets(found), []int64{4, 6, 8})
	wrong := s.receiver("filtered", 1, from("first"), amqp.NewLinkFilter("sql-filter", 0x120, "n >"))
	expect(wrong.LinkSourceFilterValue("sql-filter"), nil)
	expect(wrong.LinkSourceFilterValue("rabbitmq:stream-offset-spec"), "first")
	check(wrong.Close(s.ctx))
}

func messages(s *server) {
	s.create("messages")
	now := time.UnixMilli(1_700_000_000_000)
	subject := "about"
	values := map[string]any{
		"i8": int8(-1), "u16": uint16(1), "i64": int64(-1 << 40), "u64": uint64(1 << 63), "f": float32(1.5),
		"d": 2.5, "t": true, "s": "ü", "b": []byte{1}, "time": now, "id": amqp.UUID{1, 2}, "null": nil,
	}
	sent := []*amqp.Message{
		{Value: map[string]any{"a": []any{int32(1), "b"}}},
		{Sequence: [][]any{{int64(1), "a"}, {true}}},
		{Data: [][]byte{[]byte("a"), {}, []byte("bc")}},
		{Data: [][]byte{{}}},
		{Data: [][]byte{bytes.Repeat([]byte("large"), 100_000)}},
		{Value: "text", Properties: &amqp.MessageProperties{MessageID: amqp.UUID{7}, Subject: &subject, CreationTime: &now},
			ApplicationProperties: values, Footer: amqp.Annotations{"x-foot": "end"}},
	}
	s.publish("/queues/messages", sent...)
	for n, message := range s.take("messages", len(sent), from("first")) {
		expect(message.Data, sent[n].Data)
		expect(message.Sequence, sent[n].Sequence)
		expect(message.Value, sent[n].Value)
		expect(message.Properties, sent[n].Properties)
		expect(message.ApplicationProperties, sent[n].ApplicationProperties)
		expect(message.Footer, sent[n].Footer)
		expect(message.Annotations["x-exchange"], "")
		expect(message.Annotations["x-routing-key"], "messages")
	}
}

func credit(s *server) {
	s.create("credit")
	s.publish("/queues/credit", numbers(0, 5)...)
	receiver := s.receiver("credit", -1, from("first"))
	check(receiver.IssueCredit(3))
	for n := range 3 {
		message, err := receiver.Receive(s.ctx, nil)
		check(err)
		expect(string(message.GetData()), fmt.Sprint(n))
		check(receiver.ReleaseMessage(s.ctx, message))
	}
	expect(receiver.Prefetched(), (*amqp.Message)(nil))
	check(receiver.IssueCredit(10))
	message, err := receiver.Receive(s.ctx, nil)
	check(err)
	expect(string(message.GetData()), "3")
	check(receiver.DrainCredit(s.ctx, nil))
	expect(string(receiver.Prefetched().GetData()), "4")
	expect(receiver.Prefetched(), (*amqp.Message)(nil))
	s.publish("/queues/credit", text("after"))
	expect(receiver.Prefetched(), (*amqp.Message)(nil))
	check(receiver.IssueCredit(1))
	message, err = receiver.Receive(s.ctx, nil)
	check(err)
	expect(string(message.GetData()), "after")
	check(receiver.Close(s.ctx))
}

func routing(s *server) {
	s.create("routed")
	s.request("PUT", "/exchanges/news", map[string]any{"type": "topic"}, "204")
	s.request("POST", "/bindings", map[string]any{
		"source": "news", "destination_queue": "routed", "binding_key": "eu.#", "arguments": map[string]any{},
	}, "204")
	s.publish("/exchanges/news/eu.de", text("bound"))
	lost := s.sender("/exchanges/news/us")
	receipt, err := lost.SendWithReceipt(s.ctx, text("lost"), nil)
	check(err)
	state, err := receipt.Wait(s.ctx)
	check(err)
	expect(state, &amqp.StateReleased{})
	to, nowhere := "/queues/routed", "/exchanges/none/k"
	anonymous := s.sender("")
	check(anonymous.Send(s.ctx, &amqp.Message{Data: [][]byte{[]byte("to")}, Properties: &amqp.MessageProperties{To: &to}}, nil))
	message := &amqp.Message{Data: [][]byte{[]byte("no")}, Properties: &amqp.MessageProperties{To: &nowhere}}
	refused(anonymous.Send(s.ctx, message, nil), amqp.ErrCondNotFound)
	refused(anonymous.Send(s.ctx, text("no address"), nil), amqp.ErrCondPreconditionFailed)
	found := s.take("routed", 2, from("first"))
	expect(bodies(found), []string{"bound", "to"})
	expect(found[0].Annotations["x-exchange"], "news")
	expect(found[0].Annotations["x-routing-key"], "eu.de")
	rows := s.request("GET", "/bindings?src=news&dstq=routed&key=eu.%23", nil, "200").([]any)
	s.request("DELETE", rows[0].(map[string]any)["location"].(string), nil, "204")
	expect(len(s.request("GET", "/bindings?src=news&dstq=routed&key=eu.%23", nil, "200").([]any)), 0)
	s.request("DELETE", "/exchanges/news", nil, "204")
}

func refusals(s *server) {
	_, err := s.session.NewSender(s.ctx, "/queues/missing", nil)
	refused(err, amqp.ErrCondNotFound)
	_, err = s.session.NewReceiver(s.ctx, "/queues/missing", nil)
	refused(err, amqp.ErrCondNotFound)
	_, err = s.session.NewSender(s.ctx, "/topic/old", nil)
	refused(err, amqp.ErrCondInvalidField)
	_, err = s.session.NewReceiver(s.ctx, "", &amqp.ReceiverOptions{DynamicAddress: true})
	refused(err, amqp.ErrCondNotImplemented)
}

func deletion(s *server) {
	other := open(s.ctx, "amqp://localhost:"+os.Getenv("AMQP_PORT"), &amqp.ConnOptions{})
	s.create("deleted")
	receiver := other.receiver("deleted", 1, from("first"))
	s.request("DELETE", "/queues/deleted", nil, "200")
	_, err := receiver.Receive(s.ctx, nil)
	refused(err, amqp.ErrCondResourceDeleted)
	check(other.conn.Close())
}

func inTLS(s *server) {
	pem, err := os.ReadFile(os.Getenv("CA_FILE"))
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	options := &amqp.ConnOptions{TLSConfig: &tls.Config{RootCAs: pool}}
	inside := open(s.ctx, "amqps://localhost:"+os.Getenv("AMQP_TLS_PORT"), options)
	inside.create("inside")
	inside.publish("/queues/inside", numbers(0, 10)...)
	expect(len(inside.take("inside", 10, from("first"))), 10)
	check(inside.conn.Close())
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	parts := []struct {
		name string
		run  func(*server)
	}{
		{"publish_and_confirm", publishAndConfirm}, {"offsets", offsetsOf}, {"filtering", filtering},
		{"messages", messages}, {"credit", credit}, {"routing", routing}, {"refusals", refusals},
		{"deletion", deletion}, {"tls", inTLS},
	}
	for _, part := range parts {
		if part.name == "tls" && os.Getenv("AMQP_TLS_PORT") == "" {
			continue
		}
		s := open(ctx, "amqp://localhost:"+os.Getenv("AMQP_PORT"), &amqp.ConnOptions{HostName: "vhost:/"})
		part.run(s)
		check(s.conn.Close())
		fmt.Println("ok", part.name)
	}
}
