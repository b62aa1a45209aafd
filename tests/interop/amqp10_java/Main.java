// What RabbitMQ's Java client for AMQP 1.0 does against a running server; a line "ok NAME" for each part.

import com.rabbitmq.client.amqp.AmqpException;
import com.rabbitmq.client.amqp.BackOffDelayPolicy;
import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.Consumer;
import com.rabbitmq.client.amqp.ConsumerBuilder;
import com.rabbitmq.client.amqp.ConsumerBuilder.StreamOptions;
import com.rabbitmq.client.amqp.ConsumerBuilder.StreamOffsetSpecification;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Management;
import com.rabbitmq.client.amqp.Message;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.Resource;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.io.FileInputStream;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import java.util.function.UnaryOperator;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public class Main {

  interface Part {
    void run(Environment environment, Connection connection, String stream) throws Exception;
  }

  static int port(String name) {
    return Integer.parseInt(System.getenv(name));
  }

  static void check(boolean condition, String what) {
    if (!condition) {
      throw new IllegalStateException(what);
    }
  }

  static void same(Object found, Object expected) {
    check(expected.equals(found), "found " + found + ", expected " + expected);
  }

  static void until(BooleanSupplier condition, String what) throws Exception {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(15);
    while (!condition.getAsBoolean()) {
      check(System.nanoTime() < end, what + " did not come true");
      Thread.sleep(10);
    }
  }

  static void create(Connection connection, String stream) {
    Management management = connection.management();
    management.queueDelete(stream);
    management.queue(stream).type(Management.QueueType.STREAM)
        .argument("x-stream-filter-size-bytes", 32).declare();
  }

  static final String[] COLOURS = {"red", "green", "blue"};

  static Message number(Publisher publisher, int n) {
    String colour = COLOURS[n % 3];
    return publisher.message(Integer.toString(n).getBytes(StandardCharsets.UTF_8))
        .subject("about " + n).property("n", (long) n).property("colour", colour)
        .annotation("x-stream-filter-value", colour);
  }

  // Publishes the numbers up to `count`, and waits for the outcome of each.
  static void publish(Connection connection, String stream, int count) throws Exception {
    Publisher publisher = connection.publisherBuilder().queue(stream).build();
    CountDownLatch accepted = new CountDownLatch(count);
    for (int n = 0; n < count; n++) {
      publisher.publish(number(publisher, n), context -> {
        if (context.status() == Publisher.Status.ACCEPTED) {
          accepted.countDown();
        }
      });
    }
    check(accepted.await(15, TimeUnit.SECONDS), "not all are accepted");
    publisher.close();
  }

  static Publisher.Status outcome(Publisher publisher, Message message) throws Exception {
    CopyOnWriteArrayList<Publisher.Status> outcomes = new CopyOnWriteArrayList<>();
    publisher.publish(message, context -> outcomes.add(context.status()));
    until(() -> !outcomes.isEmpty(), "an outcome");
    return outcomes.get(0);
  }

  // The first messages that a consumer gets.
  static List<Message> take(
      Connection connection, String stream, int count, UnaryOperator<StreamOptions> wanted)
      throws Exception {
    CopyOnWriteArrayList<Message> found = new CopyOnWriteArrayList<>();
    ConsumerBuilder builder = connection.consumerBuilder().queue(stream);
    builder = wanted.apply(builder.stream()).builder().messageHandler((context, message) -> {
      found.add(message);
      context.accept();
    });
    try (Consumer ignored = builder.build()) {
      until(() -> found.size() >= count, count + " messages");
    }
    return found.subList(0, count);
  }

  static UnaryOperator<StreamOptions> first() {
    return options -> options.offset(StreamOffsetSpecification.FIRST);
  }

  static List<Long> offsets(List<Message> messages) {
    return messages.stream().map(m -> (Long) m.annotation("x-stream-offset")).toList();
  }

  static List<Long> range(long begin, long end) {
    return LongStream.range(begin, end).boxed().toList();
  }

  static void refused(Runnable action, Class<?> kind) {
    try {
      action.run();
    } catch (AmqpException error) {
      check(kind.isInstance(error), error + " is no " + kind);
      return;
    }
    throw new IllegalStateException("not refused: " + kind);
  }

  static void publishAndConfirm(Environment environment, Connection connection, String stream)
      throws Exception {
    publish(connection, stream, 500);
    List<Message> found = take(connection, stream, 500, first());
    same(found.stream().map(m -> new String(m.body())).toList(),
        IntStream.range(0, 500).mapToObj(Integer::toString).toList());
    same(offsets(found), range(0, 500));
    Management.QueueInfo info = connection.management().queueInfo(stream);
    same(info.type(), Management.QueueType.STREAM);
    same(info.arguments().get("x-queue-type"), "stream");
  }

  static void offsetSpecifications(Environment environment, Connection connection, String stream)
      throws Exception {
    publish(connection, stream, 100);
    same(offsets(take(connection, stream, 50, o -> o.offset(50))), range(50, 100));
    Instant hourAgo = Instant.now().minus(Duration.ofHours(1));
    same(offsets(take(connection, stream, 1, o -> o.offset(hourAgo))), range(0, 1));
    same(offsets(take(connection, stream, 1, o -> o.offset("1h"))), range(0, 1));
  }

  static void filtering(Environment environment, Connection connection, String stream)
      throws Exception {
    publish(connection, stream, 30);
    UnaryOperator<StreamOptions> green = o -> first().apply(o).filterValues("green")
        .filter().sql("colour = 'green' AND n > 20").stream();
    same(offsets(take(connection, stream, 3, green)), List.of(22L, 25L, 28L));
    UnaryOperator<StreamOptions> seven = o -> first().apply(o)
        .filter().subject("&s: 7").property("n", 7).property("colour", "&p:gr").stream();
    same(offsets(take(connection, stream, 1, seven)), List.of(7L));
    refused(() -> first().apply(connection.consumerBuilder().queue(stream).stream())
        .filter().sql("TRUE TRUE").stream().builder().messageHandler((c, m) -> {}).build(),
        AmqpException.class);
  }

  static void routing(Environment environment, Connection connection, String stream)
      throws Exception {
    Management management = connection.management();
    management.exchangeDelete("news");
    management.exchange("news").type(Management.ExchangeType.TOPIC).declare();
    management.binding().sourceExchange("news").destinationQueue(stream).key("eu.#").bind();
    management.binding().sourceExchange("news").destinationQueue(stream).key("eu.#")
        .argument("n", 5).bind();
    Publisher bound = connection.publisherBuilder().exchange("news").key("eu.de").build();
    same(outcome(bound, number(bound, 0)), Publisher.Status.ACCEPTED);
    Publisher lost = connection.publisherBuilder().exchange("news").key("us").build();
    same(outcome(lost, number(lost, 0)), Publisher.Status.RELEASED);
    Publisher anonymous = connection.publisherBuilder().build();
    Message to = number(anonymous, 1).toAddress().queue(stream).message();
    same(outcome(anonymous, to), Publisher.Status.ACCEPTED);
    Message nowhere = number(anonymous, 1).toAddress().exchange("none").message();
    same(outcome(anonymous, nowhere), Publisher.Status.REJECTED);
    List<Message> found = take(connection, stream, 2, first());
    same(found.get(0).annotation("x-exchange"), "news");
    same(found.get(0).annotation("x-routing-key"), "eu.de");
    same(new String(found.get(1).body()), "1");
    management.unbind().sourceExchange("news").destinationQueue(stream).key("eu.#")
        .argument("n", 5).unbind();
    management.unbind().sourceExchange("news").destinationQueue(stream).key("eu.#").unbind();
    same(outcome(bound, number(bound, 0)), Publisher.Status.RELEASED);
    management.exchangeDelete("news");
  }

  static void refusals(Environment environment, Connection connection, String stream) {
    Class<?> missing = AmqpException.AmqpEntityDoesNotExistException.class;
    refused(() -> connection.publisherBuilder().queue("none").build(), missing);
    refused(() -> connection.publisherBuilder().exchange("none").build(), missing);
    refused(() -> connection.consumerBuilder().queue("none").messageHandler((c, m) -> {}).build(),
        missing);
    Management management = connection.management();
    refused(() -> management.queueInfo("none"), missing);
    refused(() -> management.binding().sourceExchange("amq.direct").destinationQueue("none")
        .key("k").bind(), missing);
    refused(() -> management.queue(stream).type(Management.QueueType.STREAM)
        .argument("x-stream-filter-size-bytes", 64).declare(), AmqpException.class);
    refused(() -> management.queue("new").type(Management.QueueType.STREAM)
        .messageTtl(Duration.ofSeconds(5)).declare(), AmqpException.class);
    refused(() -> environment.connectionBuilder().password("wrong").build(),
        AmqpException.AmqpSecurityException.class);
  }

  static void deletion(Environment environment, Connection connection, String stream)
      throws Exception {
    CopyOnWriteArrayList<Throwable> causes = new CopyOnWriteArrayList<>();
    connection.consumerBuilder().queue(stream).messageHandler((c, m) -> {})
        .listeners(context -> {
          if (context.currentState() == Resource.State.CLOSED) {
            causes.add(context.failureCause());
          }
        }).build();
    connection.management().queueDelete(stream);
    until(() -> !causes.isEmpty(), "the consumer is closed");
    check(causes.get(0) instanceof AmqpException.AmqpEntityDoesNotExistException,
        "the cause is " + causes.get(0));
  }

  // The server ends the connections; a consumer goes on behind what it has seen.
  static void recovery(Environment environment, Connection ignored, String stream)
      throws Exception {
    try (Connection connection = environment.connectionBuilder().recovery()
        .backOffDelayPolicy(BackOffDelayPolicy.fixed(Duration.ofMillis(200)))
        .connectionBuilder().build()) {
      publish(connection, stream, 10);
      AtomicLong next = new AtomicLong(0);
      CopyOnWriteArrayList<Long> found = new CopyOnWriteArrayList<>();
      connection.consumerBuilder().queue(stream)
          .subscriptionListener(context -> context.streamOptions().offset(next.get()))
          .messageHandler((context, message) -> {
            long offset = (Long) message.annotation("x-stream-offset");
            found.add(offset);
            next.set(offset + 1);
            context.accept();
          }).build();
      until(() -> found.size() == 10, "10 messages");
      endAllConnections();
      publishAgain(environment, stream);
      until(() -> found.size() == 20, "20 messages");
      same(found, range(0, 20));
    }
  }

  static void publishAgain(Environment environment, String stream) throws Exception {
    try (Connection another = environment.connectionBuilder().build()) {
      publish(another, stream, 10);
    }
  }

  static void endAllConnections() throws Exception {
    List<String> names = new ArrayList<>();
    Pattern name = Pattern.compile("\"name\": ?\"([^\"]+ -> [^\"]+)\"");
    until(() -> {
      names.addAll(name.matcher(ask("GET", "")).results().map(r -> r.group(1)).toList());
      return !names.isEmpty();
    }, "a connection is listed");
    for (String one : names) {
      ask("DELETE", "/" + URLEncoder.encode(one, StandardCharsets.UTF_8).replace("+", "%20"));
    }
  }

  static String ask(String method, String path) {
    String login = Base64.getEncoder().encodeToString("guest:guest".getBytes());
    URI uri = URI.create("http://localhost:" + port("HTTP_PORT") + "/api/connections" + path);
    HttpRequest request = HttpRequest.newBuilder(uri).header("Authorization", "Basic " + login)
        .method(method, HttpRequest.BodyPublishers.noBody()).build();
    try {
      return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }

  static void tls(Environment environment, Connection ignored, String stream) throws Exception {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    try (FileInputStream file = new FileInputStream(System.getenv("CA_FILE"))) {
      CertificateFactory certificates = CertificateFactory.getInstance("X.509");
      store.setCertificateEntry("ca", certificates.generateCertificate(file));
    }
    TrustManagerFactory trust =
        TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(store);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, trust.getTrustManagers(), null);
    try (Connection inside = environment.connectionBuilder().port(port("AMQP_TLS_PORT"))
        .tls().sslContext(context).connection().build()) {
      publish(inside, stream, 5);
      same(offsets(take(inside, stream, 5, first())), range(0, 5));
    }
  }

  static void run(Environment environment, String name, Part part) throws Exception {
    try (Connection connection = environment.connectionBuilder().build()) {
      create(connection, name);
      part.run(environment, connection, name);
    }
    System.out.println("ok " + name);
  }

  public static void main(String[] arguments) throws Exception {
    Environment environment = new AmqpEnvironmentBuilder().connectionSettings().host("localhost")
        .port(port("AMQP_PORT")).username("guest").password("guest").environmentBuilder().build();
    run(environment, "publish_and_confirm", Main::publishAndConfirm);
    run(environment, "offsets", Main::offsetSpecifications);
    run(environment, "filtering", Main::filtering);
    run(environment, "routing", Main::routing);
    run(environment, "refusals", Main::refusals);
    run(environment, "deletion", Main::deletion);
    run(environment, "recovery", Main::recovery);
    if (System.getenv("AMQP_TLS_PORT") != null) {
      run(environment, "tls", Main::tls);
    }
    environment.close();
    System.exit(0);
  }
}
