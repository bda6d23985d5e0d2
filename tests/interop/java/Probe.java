import java.io.*;
import java.math.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import rpcstream.client.*;

/** Does what test_java.py says, a JSON array a line, and prints what came of it. */
public class Probe {
    private static RpcClient client;

    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> outcome = new HashMap<>();
            try {
                outcome.put("result", obey((List<?>) Json.read(line)));
            } catch (RpcException error) {
                outcome.put("error", Arrays.asList(error.code(), error.getMessage(), error.data()));
            } catch (Exception error) {
                outcome.put("raised", error.getClass().getName());
                outcome.put("message", error.getMessage());
            }
            out.print(Json.write(outcome) + "\n");
            out.flush();
        }
    }

    private static Object obey(List<?> words) throws Exception {
        Object second = words.size() > 1 ? words.get(1) : null;
        Object third = words.size() > 2 ? words.get(2) : null;
        switch ((String) words.get(0)) {
            case "connect":
                if (client != null) {
                    client.close();
                }
                client = RpcClient.connect("127.0.0.1", ((Long) second).intValue(), Duration.ofMillis((Long) third));
                return null;
            case "call":
                return third == null ? client.call((String) second)
                        : third instanceof List<?> list ? client.call((String) second, list)
                        : client.call((String) second, named(third));
            case "close":
                client.close();
                return null;
            case "read":
                Object value = Json.read((String) second);
                return Arrays.asList(value == null ? "null" : value.getClass().getSimpleName(), value);
            case "write":
                return Json.write(odd((String) second));
            case "offer frames":
                return client.offerFrames();
            case "echo array":
                double[] values = new Random(0).doubles((Long) second).toArray();
                Tagged array = Tagged.of(client.call("echo", List.of(Tagged.array(values, 2, values.length / 2))));
                return Arrays.asList(array.type(), array.member("dtype"), array.shape(),
                        Arrays.equals(array.doubles(), values));
            case "echo bytes":
                return echoBytes((List<?>) second);
            case "array sum":
                return client.call("sum", List.of(
                        Tagged.array(new float[] {1.5f, 2}), Tagged.array(new long[] {3, 4}, 1, 2),
                        Tagged.array(new int[] {5})));
            case "echo nested":
                return client.call("echo", List.of(nested(((Long) second).intValue()))) != null;
            case "echo in threads":
                return echoInThreads(((Long) second).intValue(), ((Long) third).intValue());
            case "close while waiting":
                new Timer(true).schedule(new TimerTask() {
                    @Override
                    public void run() {
                        try {
                            client.close();
                        } catch (IOException error) {
                            throw new UncheckedIOException(error);
                        }
                    }
                }, 200);
                return client.call("wait");
            default:
                throw new UnsupportedOperationException();
        }
    }

    /** Random bytes of these numbers, sent and compared: all right? */
    private static Object echoBytes(List<?> sizes) throws Exception {
        List<Tagged> sent = new ArrayList<>();
        for (Object size : sizes) {
            byte[] bytes = new byte[((Long) size).intValue()];
            new Random((Long) size).nextBytes(bytes);
            sent.add(Tagged.bytes(bytes));
        }
        List<?> back = (List<?>) client.call("echo", Map.of("value", sent));
        boolean same = back.size() == sent.size();
        for (int each = 0; same && each < sent.size(); each++) {
            same = Arrays.equals(Tagged.of(back.get(each)).bytes(), sent.get(each).bytes());
        }
        return same;
    }

    @SuppressWarnings("unchecked")
    private static Map<String, ?> named(Object params) {
        return (Map<String, ?>) params;
    }

    private static Object nested(int depth) {
        Object value = List.of();
        for (int each = 1; each < depth; each++) {
            value = List.of(value);
        }
        return value;
    }

    private static long echoInThreads(int threads, int calls) throws InterruptedException {
        var right = new java.util.concurrent.atomic.AtomicLong();
        List<Thread> all = new ArrayList<>();
        for (long thread = 0; thread < threads; thread++) {
            long first = thread * calls;
            all.add(new Thread(() -> {
                try {
                    for (long each = first; each < first + calls; each++) {
                        right.addAndGet(client.call("echo", List.of(each)).equals(each) ? 1 : 0);
                    }
                } catch (IOException | RpcException error) {
                    error.printStackTrace();
                }
            }));
        }
        for (Thread each : all) {
            each.start();
        }
        for (Thread each : all) {
            each.join();
        }
        return right.get();
    }

    private static Object odd(String name) {
        List<Object> itself = new ArrayList<>();
        itself.add(itself);
        return switch (name) {
            case "nan" -> Double.NaN;
            case "infinity" -> List.of(Double.NEGATIVE_INFINITY);
            case "float nan" -> Map.of("x", Float.NaN);
            case "nan in an array" -> new double[] {1, Double.NaN};
            case "high half" -> "a\ud83d";
            case "high half inside" -> "a\ud83da";
            case "low half" -> Map.of("\ude00", 1);
            case "number as key" -> Map.of(1, 1);
            case "itself" -> itself;
            case "object" -> new Object();
            case "atomic" -> new java.util.concurrent.atomic.AtomicInteger();
            case "arrays" -> new Object[] {
                new double[] {1, 0.1, 1e300}, new float[] {0.1f}, new long[] {Long.MIN_VALUE}, new int[0],
                new byte[] {-1}, new boolean[] {true}, new String[] {"x", null}
            };
            case "numbers" -> Arrays.asList((byte) 1, (short) 2, 3, 4L, BigInteger.TEN.pow(30), -0.0, Double.MIN_VALUE,
                    new BigDecimal("1E+3"), Float.MAX_VALUE);
            case "others" -> Arrays.asList(new StringBuilder("x"), new TreeSet<>(Set.of(2, 1)), null);
            default -> throw new NoSuchElementException(name);
        };
    }
}
