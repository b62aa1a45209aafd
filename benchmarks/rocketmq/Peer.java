import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The load on a RocketMQ broker, with its own client. One process runs all rows, so that the code is compiled once.
 *
 * Reads commands from stdin, words separated by tabs, and answers each with a line of JSON:
 *   topic NAME                  make a topic with one queue
 *   publish NAME COUNT RUN      the orders of benchmarks/orders.py, in requests of 100, 20 of them under way; seconds
 *   pull NAME SELECTOR          read from the beginning to the end, 1,024 messages in a request; seconds, messages, bytes
 *   keys NAME COUNT LOOKUPS     look orders up, one after the other; seconds, messages, milliseconds of each
 * SELECTOR is "tag:T", "sql:CONDITION", or "tag:*" for all.
 */
public class Peer {
    static final int BATCH = 100, WINDOW = 20, MOST = 1024;
    static final String[] REGIONS = {"EU", "US", "UK", "JP"};
    static final long MASK = 0xffffffffL;
    static final byte[] BODY = new byte[100];

    static final DefaultMQProducer producer = new DefaultMQProducer("peer-producer");
    static final DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("peer-consumer");

    public static void main(String[] args) throws Exception {
        Arrays.fill(BODY, (byte) 'x');
        producer.setNamesrvAddr(System.getProperty("peer.namesrv"));
        producer.setSendMsgTimeout(30_000);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        consumer.setNamesrvAddr(producer.getNamesrvAddr());
        consumer.start();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                System.out.println(run(line.split("\t")));
            } catch (Exception e) {
                System.out.println("{\"error\": \"" + e.toString().replaceAll("[\"\\\\\\s]+", " ") + "\"}");
            }
        }
        System.exit(0);
    }

    static String run(String[] word) throws Exception {
        switch (word[0]) {
            case "topic": return topic(word[1]);
            case "publish": return publish(word[1], Integer.parseInt(word[2]), Integer.parseInt(word[3]));
            case "pull": return pull(word[1], word[2]);
            case "keys": return keys(word[1], Integer.parseInt(word[2]), Integer.parseInt(word[3]));
            default: throw new IllegalArgumentException(word[0]);
        }
    }

    static long mixed(long x) {
        x = x * 2654435761L & MASK;
        x ^= x >>> 15;
        x = x * 2246822519L & MASK;
        return x ^ x >>> 13;
    }

    static String orderId(long i) {
        return String.format("order-%09d", i);
    }

    /** An order as benchmarks/orders.py makes it, which also says how many match. */
    static Message order(String topic, long i, long count, long run) {
        long kind = mixed(i / run) % 50, tag = mixed(i / run + 1_000_000_007L) % 100;
        long x = mixed(i), total = x / 50 % 1000;
        if (i == count - 1) {
            kind = tag = 7;
            total = 999;
        }
        String id = orderId(i);
        Message message = new Message(topic, "t" + tag, id, BODY);
        message.putUserProperty("region", REGIONS[(int) (x / 50_000 % 4)]);
        message.putUserProperty("kind", "k" + kind);
        message.putUserProperty("total", Long.toString(total));
        message.putUserProperty("order_id", id);
        return message;
    }

    static String topic(String name) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(producer.getNamesrvAddr());
        admin.start();
        try {
            var brokers = admin.examineBrokerClusterInfo().getBrokerAddrTable().values();
            for (int i = 0; brokers.isEmpty() && i < 100; i++) {  // it has started, and not told the name server yet
                Thread.sleep(100);
                brokers = admin.examineBrokerClusterInfo().getBrokerAddrTable().values();
            }
            String broker = brokers.iterator().next().selectBrokerAddr();
            admin.createAndUpdateTopicConfig(broker, new TopicConfig(name, 1, 1, 6, 0));
        } finally {
            admin.shutdown();
        }
        MessageQueue queue = queueOf(name);
        // Until a heartbeat has told the client the broker's version, it refuses SQL.
        MQClientInstance client = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        client.updateTopicRouteInfoFromNameServer(name);
        while (client.findBrokerAddressInSubscribe(queue.getBrokerName(), 0, false).getBrokerVersion() == 0) {
            client.sendHeartbeatToAllBrokerWithLock();
            Thread.sleep(100);
        }
        return "{}";
    }

    static MessageQueue queueOf(String topic) throws Exception {
        for (int i = 0; ; i++) {
            try {
                return producer.fetchPublishMessageQueues(topic).get(0);
            } catch (MQClientException e) {  // the name server does not know it yet
                if (i == 100) {
                    throw e;
                }
            }
            Thread.sleep(100);
        }
    }

    static String publish(String topic, int count, int run) throws Exception {
        MessageQueue queue = queueOf(topic);
        Semaphore room = new Semaphore(WINDOW);
        AtomicReference<Throwable> failed = new AtomicReference<>();
        SendCallback callback = new SendCallback() {
            @Override public void onSuccess(SendResult result) { room.release(); }
            @Override public void onException(Throwable e) { failed.set(e); room.release(); }
        };
        long began = System.nanoTime();
        for (int i = 0; i < count; ) {
            List<Message> messages = new ArrayList<>(BATCH);
            for (int end = Math.min(i + BATCH, count); i < end; i++) {
                messages.add(order(topic, i, count, run));
            }
            room.acquire();
            producer.send(messages, queue, callback);
        }
        room.acquire(WINDOW);
        double seconds = (System.nanoTime() - began) / 1e9;
        if (failed.get() != null) {
            throw new RuntimeException(failed.get());
        }
        // What is stored can be read and looked up a little later.
        while (consumer.maxOffset(queue) < count || !isFound(topic, orderId(count - 1))) {
            Thread.sleep(100);
        }
        return "{\"seconds\": " + seconds + "}";
    }

    static boolean isFound(String topic, String id) throws Exception {
        try {
            return !producer.queryMessage(topic, id, 1, 0, Long.MAX_VALUE).getMessageList().isEmpty();
        } catch (MQClientException e) {  // there is no message
            return false;
        }
    }

    static String pull(String topic, String text) throws Exception {
        MessageQueue queue = queueOf(topic);
        String condition = text.substring(4);
        MessageSelector selector = text.startsWith("sql:") ? MessageSelector.bySql(condition) : MessageSelector.byTag(condition);
        long end = consumer.maxOffset(queue), found = 0, bytes = 0;
        long began = System.nanoTime();
        for (long offset = 0; offset < end; ) {
            PullResult result = consumer.pull(queue, selector, offset, MOST);
            offset = result.getNextBeginOffset();
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    found += message.getProperty("kind") != null ? 1 : 0;
                    bytes += message.getStoreSize();
                }
            }
        }
        return "{\"seconds\": " + (System.nanoTime() - began) / 1e9 + ", \"messages\": " + found + ", \"bytes\": " + bytes + "}";
    }

    static String keys(String topic, int count, int lookups) throws Exception {
        Random chance = new Random(1);
        List<Double> millis = new ArrayList<>();
        long found = 0, began = System.nanoTime();
        for (int i = 0; i < lookups; i++) {
            String id = orderId(chance.nextInt(count));
            long before = System.nanoTime();
            for (MessageExt message : producer.queryMessage(topic, id, 32, 0, Long.MAX_VALUE).getMessageList()) {
                found += id.equals(message.getKeys()) ? 1 : 0;
            }
            millis.add((System.nanoTime() - before) / 1e6);
        }
        return "{\"seconds\": " + (System.nanoTime() - began) / 1e9 + ", \"messages\": " + found + ", \"millis\": " + millis + "}";
    }
}
