// What the Java client does against a running server; a line "ok NAME" for each part.

import com.rabbitmq.stream.ByteCapacity;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.ConsumerBuilder;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.EnvironmentBuilder;
import com.rabbitmq.stream.Message;
import com.rabbitmq.stream.NoOffsetException;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.ProducerBuilder;
import com.rabbitmq.stream.StreamStats;
import com.rabbitmq.stream.compression.Compression;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.IntStream;

public class Main {

  interface Part {
    void run(Environment environment, String stream) throws Exception;
  }

  static int port(String name) {
    return Integer.parseInt(System.getenv(name));
  }

  static void check(boolean condition, String what) {
    if (!condition) {
      throw new IllegalStateException(what);
    }
  }

  static void until(BooleanSupplier condition, String what) throws Exception {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(15);
    while (!condition.getAsBoolean()) {
      check(System.nanoTime() < end, what + " did not come true");
      Thread.sleep(10);
    }
  }

  static List<String> numbers(int count) {
    return IntStream.range(0, count).mapToObj(Integer::toString).toList();
  }

  static String text(Message message) {
    return new String(message.getBodyAsBinary(), StandardCharsets.UTF_8);
  }

  static Message message(Producer producer, String body) {
    return producer
        .messageBuilder()
        .applicationProperties()
        .entry("carrier", body)
        .messageBuilder()
        .addData(body.getBytes(StandardCharsets.UTF_8))
        .build();
  }

  static void publish(ProducerBuilder builder, List<String> bodies) throws Exception {
    try (Producer producer = builder.build()) {
      CountDownLatch confirms = new CountDownLatch(bodies.size());
      for (String body : bodies) {
        producer.send(
            message(producer, body),
            status -> {
              if (status.isConfirmed()) {
                confirms.countDown();
              } else {
                System.err.println("a message is refused with code " + status.getCode());
              }
            });
      }
      check(confirms.await(15, TimeUnit.SECONDS), confirms.getCount() + " confirms are missing");
    }
  }

  static List<String> consume(ConsumerBuilder builder, List<String> expected) throws Exception {
    List<String> got = new CopyOnWriteArrayList<>();
    try (Consumer consumer =
        builder.messageHandler((context, message) -> got.add(text(message))).build()) {
      until(() -> got.size() >= expected.size(), expected.size() + " messages");
      Thread.sleep(100);
    }
    check(got.equals(expected), got + ", not " + expected);
    return got;
  }

  static ConsumerBuilder fromFirst(Environment environment, String stream) {
    return environment.consumerBuilder().stream(stream).offset(OffsetSpecification.first());
  }

  static void publishAndConfirm(Environment environment, String stream) throws Exception {
    publish(environment.producerBuilder().stream(stream), numbers(1000));
    consume(fromFirst(environment, stream), numbers(1000));
    consume(
        environment.consumerBuilder().stream(stream).offset(OffsetSpecification.offset(990)),
        numbers(1000).subList(990, 1000));
  }

  static void deduplication(Environment environment, String stream) throws Exception {
    long[] ids = {1, 2, 2, 1, 3};
    CountDownLatch confirms = new CountDownLatch(ids.length);
    try (Producer producer = environment.producerBuilder().name("p").stream(stream).build()) {
      for (long id : ids) {
        producer.send(
            producer
                .messageBuilder()
                .publishingId(id)
                .addData(Long.toString(id).getBytes(StandardCharsets.UTF_8))
                .build(),
            status -> confirms.countDown());
      }
      until(() -> producer.getLastPublishingId() == 3, "the last publishing id");
    }
    consume(fromFirst(environment, stream), List.of("1", "2", "3"));
  }

  static void subBatches(Environment environment, String stream) throws Exception {
    // Not compressed: closing its compressing stream fails in client 1.11.0 before anything is sent.
    ProducerBuilder builder =
        environment.producerBuilder().stream(stream).subEntrySize(20).compression(Compression.NONE);
    publish(builder, numbers(100));
    consume(fromFirst(environment, stream), numbers(100));
  }

  static void filtering(Environment environment, String stream) throws Exception {
    for (String carrier : List.of("HA", "UA", "HA")) {
      publish(
          environment.producerBuilder().stream(stream)
              .filterValue(message -> message.getApplicationProperties().get("carrier").toString()),
          List.of(carrier));
    }
    publish(environment.producerBuilder().stream(stream), List.of("none"));
    consume(
        fromFirst(environment, stream)
            .filter()
            .values("HA")
            .postFilter(message -> true)
            .builder(),
        List.of("HA", "HA"));
    consume(
        fromFirst(environment, stream)
            .filter()
            .values("HA")
            .matchUnfiltered()
            .postFilter(message -> true)
            .builder(),
        List.of("HA", "HA", "none"));
    // A chunk of both comes whole: the consumer has to test each message.
    publish(
        environment.producerBuilder().stream(stream)
            .filterValue(message -> message.getApplicationProperties().get("carrier").toString()),
        List.of("HA", "UA"));
    consume(
        fromFirst(environment, stream)
            .filter()
            .values("HA")
            .postFilter(message -> "HA".equals(message.getApplicationProperties().get("carrier")))
            .builder(),
        List.of("HA", "HA", "HA"));
  }

  static void offsetTracking(Environment environment, String stream) throws Exception {
    publish(environment.producerBuilder().stream(stream), numbers(10));
    List<String> got = new CopyOnWriteArrayList<>();
    try (Consumer consumer =
        environment.consumerBuilder().stream(stream)
            .name("app")
            .offset(OffsetSpecification.first())
            .manualTrackingStrategy()
            .builder()
            .messageHandler((context, message) -> got.add(text(message)))
            .build()) {
      until(() -> got.size() == 10, "10 messages");
      consumer.store(6);
      until(() -> consumer.storedOffset() == 6, "the stored offset");
    }
    consume(
        environment.consumerBuilder().stream(stream)
            .name("app")
            .manualTrackingStrategy()
            .builder(),
        List.of("7", "8", "9"));
  }

  static void statistics(Environment environment, String stream) throws Exception {
    try {
      environment.queryStreamStats(stream).firstOffset();
      check(false, "an empty stream has a first offset");
    } catch (NoOffsetException expected) {
      // as it should be
    }
    publish(environment.producerBuilder().stream(stream), numbers(10));
    StreamStats stats = environment.queryStreamStats(stream);
    check(stats.firstOffset() == 0, "the first offset is not 0");
    check(stats.committedOffset() == 9, "the committed offset is not 9");
  }

  static void superStream(Environment environment, String stream) throws Exception {
    environment.streamCreator().name(stream).superStream().partitions(3).creator().create();
    ProducerBuilder builder = environment.producerBuilder().superStream(stream);
    publish(
        builder
            .routing(message -> message.getApplicationProperties().get("carrier").toString())
            .producerBuilder(),
        numbers(60));
    List<String> got = new CopyOnWriteArrayList<>();
    try (Consumer consumer =
        environment
            .consumerBuilder()
            .superStream(stream)
            .offset(OffsetSpecification.first())
            .messageHandler((context, message) -> got.add(text(message)))
            .build()) {
      until(() -> got.size() >= 60, "60 messages");
    }
    check(got.stream().sorted().toList().equals(numbers(60).stream().sorted().toList()), "" + got);
    publish(
        environment
            .producerBuilder()
            .superStream(stream)
            .routing(message -> "1")
            .key()
            .producerBuilder(),
        List.of("x"));
    check(environment.queryStreamStats(stream + "-1").committedOffset() > 0, "routing by key");
    environment.deleteSuperStream(stream);
  }

  static Consumer join(Environment environment, String stream, List<String> got) {
    return environment.consumerBuilder().stream(stream)
        .name("app")
        .singleActiveConsumer()
        .offset(OffsetSpecification.first())
        .noTrackingStrategy()
        .consumerUpdateListener(context -> OffsetSpecification.first())
        .messageHandler((context, message) -> got.add(text(message)))
        .build();
  }

  static void singleActiveConsumer(Environment environment, String stream) throws Exception {
    publish(environment.producerBuilder().stream(stream), numbers(10));
    List<String> first = new CopyOnWriteArrayList<>();
    List<String> second = new CopyOnWriteArrayList<>();
    Consumer active = join(environment, stream, first);
    until(() -> first.size() == 10, "10 messages");
    try (Consumer waiting = join(environment, stream, second)) {
      Thread.sleep(300);
      check(second.isEmpty(), "two are active");
      active.close();
      until(() -> second.size() == 10, "the second consumer's turn");
    }
  }

  static List<String> bodies(String writer) {
    return numbers(200).stream().map(number -> writer + number).toList();
  }

  static void comeAndGo(Environment environment, String stream) throws Exception {
    for (String number : numbers(10)) {
      environment.streamCreator().stream(stream).create();
      publish(environment.producerBuilder().stream(stream), List.of(number));
      consume(fromFirst(environment, stream), List.of(number));
      environment.deleteStream(stream);
    }
  }

  // Several publish and consume one stream while others come and go beside it.
  static void concurrency(Environment environment, String stream) throws Exception {
    ExecutorService threads = Executors.newCachedThreadPool();
    List<List<String>> all = new ArrayList<>();
    for (int reader = 0; reader < 3; reader++) {
      List<String> got = new CopyOnWriteArrayList<>();
      all.add(got);
      fromFirst(environment, stream)
          .messageHandler((context, message) -> got.add(text(message)))
          .build();
    }
    List<Callable<Void>> tasks = new ArrayList<>();
    for (String writer : List.of("a", "b", "c")) {
      tasks.add(
          () -> {
            publish(environment.producerBuilder().stream(stream), bodies(writer));
            return null;
          });
    }
    for (String other : List.of(stream + "-x", stream + "-y")) {
      tasks.add(
          () -> {
            comeAndGo(environment, other);
            return null;
          });
    }
    for (Future<Void> task : threads.invokeAll(tasks)) {
      task.get();
    }
    threads.shutdown();
    for (List<String> got : all) {
      until(() -> got.size() >= 600, "600 messages");
      check(got.equals(all.get(0)), "another order");
      for (String writer : List.of("a", "b", "c")) {
        List<String> own = got.stream().filter(body -> body.startsWith(writer)).toList();
        check(own.equals(bodies(writer)), own + " of " + writer);
      }
    }
  }

  // Messages to offset 19 were seen; those from 10 on were lost with the machine.
  static void gap(Environment environment, String unused) throws Exception {
    String stream = System.getenv("GAP_STREAM");
    publish(environment.producerBuilder().stream(stream), numbers(3));
    for (long offset : new long[] {10, 15, 20}) {
      consume(
          environment.consumerBuilder().stream(stream).offset(OffsetSpecification.offset(offset)),
          numbers(3));
    }
    consume(
        environment.consumerBuilder().stream(stream)
            .name("app")
            .manualTrackingStrategy()
            .builder(),
        numbers(3));
  }

  static void tls(Environment unused, String stream) throws Exception {
    File authority = new File(System.getenv("CA_FILE"));
    EnvironmentBuilder builder =
        environment(port("TLS_PORT"))
            .tls()
            .sslContext(SslContextBuilder.forClient().trustManager(authority).build())
            .environmentBuilder();
    try (Environment environment = builder.build()) {
      publish(environment.producerBuilder().stream(stream), numbers(100));
      consume(fromFirst(environment, stream), numbers(100));
    }
  }

  static EnvironmentBuilder environment(int port) {
    return Environment.builder().host("localhost").port(port).username("guest").password("guest");
  }

  static void run(String name, Part part) throws Exception {
    String stream = "java-" + name;
    try (Environment environment = environment(port("STREAM_PORT")).build()) {
      if (!name.equals("super_stream")) {
        environment.streamCreator().stream(stream).maxLengthBytes(ByteCapacity.GB(1)).create();
      }
      part.run(environment, stream);
    }
    System.out.println("ok " + name);
  }

  public static void main(String[] arguments) throws Exception {
    run("publish_and_confirm", Main::publishAndConfirm);
    run("deduplication", Main::deduplication);
    run("sub_batches", Main::subBatches);
    run("filtering", Main::filtering);
    run("offset_tracking", Main::offsetTracking);
    run("statistics", Main::statistics);
    run("super_stream", Main::superStream);
    run("single_active_consumer", Main::singleActiveConsumer);
    run("concurrency", Main::concurrency);
    run("gap", Main::gap);
    run("tls", Main::tls);
    System.exit(0);
  }
}
