// SPDX-License-Identifier: Apache-2.0
// Jedis against a compute shard. See hack/local/drivers_test.go for what every driver does. The driver has no Unix sockets of its own.
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.BuilderFactory;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.CommandObject;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.exceptions.JedisAccessControlException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.SetParams;

public class Jedis {
  static final String HOST = System.getenv("FARPOOL_HOST");
  static final int PORT = Integer.parseInt(System.getenv("FARPOOL_PORT"));
  static final int LOCKED = Integer.parseInt(System.getenv("FARPOOL_LOCKED_PORT"));
  static final String PASSWORD = System.getenv("FARPOOL_PASSWORD");

  interface Code {
    Object run() throws Exception;
  }

  static void equal(Object got, Object wanted) {
    if (!got.equals(wanted)) throw new AssertionError("got " + got + ", and wanted " + wanted);
  }

  // Wants an error of this type. The pool of connections wraps what happens while it makes one.
  static void refused(Class<? extends Exception> type, String words, Code code) throws Exception {
    Object answer;
    try {
      answer = code.run();
    } catch (Exception e) {
      Throwable cause = e;
      while (cause != null && !(type.isInstance(cause) && cause.getMessage().contains(words))) cause = cause.getCause();
      if (cause == null) throw new AssertionError("no " + type + " with '" + words + "'", e);
      return;
    }
    throw new AssertionError("no error with '" + words + "': the answer was " + answer);
  }

  static RedisClient connect(int port, DefaultJedisClientConfig.Builder config) {
    ConnectionPoolConfig pool = new ConnectionPoolConfig();
    pool.setMaxTotal(4);
    return RedisClient.builder().hostAndPort(HOST, port).clientConfig(config.build()).poolConfig(pool).build();
  }

  static DefaultJedisClientConfig.Builder config() {
    return DefaultJedisClientConfig.builder();
  }

  // Asks what the driver has no method for.
  static String client(RedisClient client, String what) {
    return client.executeCommand(new CommandObject<>(new CommandArguments(Protocol.Command.CLIENT).add(what), BuilderFactory.STRING));
  }

  static byte[] utf8(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  // Returns the driver's version, as the driver tells it to servers.
  static String connections() throws Exception {
    String version;
    try (RedisClient stranger = RedisClient.create(HOST, LOCKED)) {
      refused(JedisDataException.class, "NOAUTH", () -> stranger.get("x"));
    }
    try (RedisClient wrong = connect(LOCKED, config().password("wrong"))) {
      refused(JedisAccessControlException.class, "WRONGPASS", wrong::ping);
    }
    try (RedisClient alone = connect(LOCKED, config().password(PASSWORD))) {
      equal(alone.ping(), "PONG");
    }
    try (RedisClient named = connect(LOCKED, config().user("default").password(PASSWORD).clientName("Jedis"))) {
      equal(client(named, "GETNAME"), "Jedis");
      Matcher library = Pattern.compile(" lib-name=jedis lib-ver=(\\S+)").matcher(client(named, "INFO"));
      equal(library.find(), true);
      version = library.group(1);
    }
    try (RedisClient other = connect(PORT, config().database(1))) {
      refused(JedisDataException.class, "DB index is out of range", other::ping);
    }
    return version;
  }

  static void strings(RedisClient client) throws Exception {
    byte[] value = new byte[25600];
    for (int i = 0; i < value.length; i++) value[i] = (byte) i;
    byte[] binary = utf8("Jedis:binary");
    client.set(binary, value);
    equal(Arrays.equals(client.get(binary), value), true);
    client.del("Jedis:nx");
    equal(client.set("Jedis:nx", "1", SetParams.setParams().nx().ex(100)), "OK");
    equal(client.set("Jedis:nx", "2", SetParams.setParams().nx()) == null, true);
    equal(client.ttl("Jedis:nx") > 90, true);
    equal(client.incrBy("Jedis:nx", 41), 42L);
    refused(JedisDataException.class, "not an integer", () -> client.incr("Jedis:binary"));
    equal(client.mset("Jedis:a", "1", "Jedis:b", "2"), "OK");
    equal(client.mget("Jedis:a", "Jedis:b", "Jedis:none"), Arrays.asList("1", "2", null));
    equal(client.del("Jedis:a", "Jedis:b", "Jedis:none"), 2L);
    Set<String> keys = new HashSet<>();
    try (Pipeline pipeline = client.pipelined()) {
      for (int i = 0; i < 300; i++) {
        keys.add("Jedis:scan:" + i);
        pipeline.set("Jedis:scan:" + i, "x", SetParams.setParams().ex(1000));
      }
      equal(new HashSet<>(pipeline.syncAndReturnAll()), Set.of("OK"));
    }
    equal(new HashSet<>(client.scanIteration(50, "Jedis:scan:*").collect(new ArrayList<>())), keys);
  }

  static void hashes(RedisClient client) throws Exception {
    client.del("Jedis:hash");
    equal(client.hset("Jedis:hash", Map.of("one", "1", "two", "2")), 2L);
    equal(client.hincrBy("Jedis:hash", "one", 9), 10L);
    equal(client.hgetAll("Jedis:hash"), Map.of("one", "10", "two", "2"));
    equal(client.hscan("Jedis:hash", "0").getResult().size(), 2);
    equal(client.expire("Jedis:hash", 100), 1L);
    refused(JedisDataException.class, "WRONGTYPE", () -> client.get("Jedis:hash"));
  }

  static void transactions(RedisClient client) throws Exception {
    try (AbstractTransaction transaction = client.multi()) {
      transaction.set("Jedis:count", "1");
      transaction.incr("Jedis:count");
      transaction.expire("Jedis:count", 100);
      equal(transaction.exec(), List.of("OK", 2L, 1L));
    }
    try (AbstractTransaction transaction = client.transaction(false)) {
      transaction.watch("Jedis:count");
      client.incr("Jedis:count");
      transaction.multi();
      transaction.set("Jedis:count", "0");
      equal(transaction.exec() == null, true);
    }
    equal(client.get("Jedis:count"), "3");
    try (AbstractTransaction transaction = client.multi()) {
      transaction.set("Jedis:x", "1");
      transaction.set("Jedis:y", "2");
      refused(JedisDataException.class, "all commands of a transaction of this pool have one key", transaction::exec);
    }
    equal(client.exists("Jedis:x", "Jedis:y"), 0L);
  }

  // Eight threads have four connections.
  static void pools(RedisClient client) throws Exception {
    client.del("Jedis:pool");
    var threads = Executors.newFixedThreadPool(8);
    List<Future<Long>> counted = new ArrayList<>();
    for (int i = 0; i < 200; i++) counted.add(threads.submit(() -> client.incr("Jedis:pool")));
    for (Future<Long> one : counted) one.get();
    threads.shutdown();
    equal(client.get("Jedis:pool"), "200");
  }

  static void refusals(RedisClient client) throws Exception {
    refused(JedisDataException.class, "unknown command 'EVAL'", () -> client.eval("return 1"));
    refused(JedisDataException.class, "unknown command 'BLPOP'", () -> client.blpop(1, "Jedis:list"));
    refused(JedisDataException.class, "unknown command 'PUBLISH'", () -> client.publish("channel", "x"));
    refused(JedisDataException.class, "unknown command 'SUBSCRIBE'", () -> {
      client.subscribe(new JedisPubSub() {}, "channel");
      return "the end of the subscription";
    });
    equal(client.ping(), "PONG");
  }

  public static void main(String[] arguments) throws Exception {
    String version = connections();
    for (DefaultJedisClientConfig.Builder config : List.of(config(), config().protocol(RedisProtocol.RESP2), config().protocol(RedisProtocol.RESP3))) {
      try (RedisClient client = connect(PORT, config)) {
        strings(client);
        hashes(client);
        transactions(client);
        pools(client);
        refusals(client);
      }
    }
    System.out.println("Jedis " + version);
  }
}
