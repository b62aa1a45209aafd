// Publishes numbers with a name, and reads them, while the nodes of a cluster are started again one
// after the other. It ends when its input has something, and says what became of them.

import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

public class Main {

  static final int BATCH = 20;
  static final long PAUSE_MS = 100;
  static final long PATIENCE_SECONDS = 120;

  /** Publishes a batch; the codes with which messages of it were not confirmed, and how many. */
  static Map<Short, Integer> publish(Producer producer, int first) throws Exception {
    Map<Short, Integer> codes = new ConcurrentHashMap<>();
    CountDownLatch waiting = new CountDownLatch(BATCH);
    for (int number = first; number < first + BATCH; number++) {
      producer.send(
          producer
              .messageBuilder()
              .publishingId(number)
              .addData(Integer.toString(number).getBytes(StandardCharsets.UTF_8))
              .build(),
          status -> {
            if (!status.isConfirmed()) {
              codes.merge(status.getCode(), 1, Integer::sum);
            }
            waiting.countDown();
          });
    }
    if (!waiting.await(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
      throw new IllegalStateException("nobody says what became of a batch");
    }
    return codes;
  }

  public static void main(String[] arguments) throws Exception {
    String stream = System.getenv("STREAM");
    var uris =
        Arrays.stream(System.getenv("STREAM_PORTS").split(","))
            .map(port -> "rabbitmq-stream://guest:guest@localhost:" + port)
            .collect(Collectors.toList());
    Set<String> seen = ConcurrentHashMap.newKeySet();
    AtomicInteger twice = new AtomicInteger();
    Map<Short, Integer> codes = new ConcurrentHashMap<>();
    int sent = 0;
    int again = 0;
    int failed = 0;
    try (Environment environment = Environment.builder().uris(uris).build()) {
      environment
          .consumerBuilder()
          .stream(stream)
          .offset(OffsetSpecification.first())
          .messageHandler(
              (context, message) -> {
                String text = new String(message.getBodyAsBinary(), StandardCharsets.UTF_8);
                if (!seen.add(text)) {
                  twice.incrementAndGet();
                }
              })
          .build();
      Producer producer = environment.producerBuilder().stream(stream).name("p").build();
      System.out.println("ready");
      while (System.in.available() == 0) {
        // In order: what is sent again must not come after later ones.
        for (boolean isDone = false; !isDone; Thread.sleep(PAUSE_MS)) {
          try {
            Map<Short, Integer> found = publish(producer, sent + 1);
            found.forEach((code, count) -> codes.merge(code, count, Integer::sum));
            isDone = found.isEmpty();
          } catch (com.rabbitmq.stream.StreamException error) {
            System.out.println(error);
            failed++;
          }
          again += isDone ? 0 : BATCH;
        }
        sent += BATCH;
      }
      long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
      while (seen.size() < sent && System.nanoTime() < end) {
        Thread.sleep(PAUSE_MS);
      }
      producer.close();
      System.out.println("codes of what was sent again: " + codes);
      System.out.printf(
          "sent %d failed %d again %d read %d twice %d%n",
          sent, failed, again, seen.size(), twice.get());
    }
    System.exit(0);
  }
}
