import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.googlecode.jsonrpc4j.JsonRpcClient;
import com.googlecode.jsonrpc4j.JsonRpcClientException;
import com.googlecode.jsonrpc4j.JsonRpcHttpAsyncClient;
import com.googlecode.jsonrpc4j.JsonRpcHttpClient;
import com.googlecode.jsonrpc4j.ProxyUtil;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.Socket;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

/**
 * A client of jsonrpc4j that does what test_jsonrpc4j.py says: an order a line on the standard input, a JSON array.
 * What comes of each is a line on the standard output: {"result": …}, {"error": [code, message, data]} or
 * {"raised": …}.
 *
 * <pre>
 * ["connect", kind, port]         kind: "stream", "http" or "async"; at 127.0.0.1
 * ["call", method, params]        params: an array or an object
 * ["notify", method, params]      by the stream alone: over HTTP, jsonrpc4j has none
 * ["add", a, b]                   through a proxy of the interface Adder; not with the asynchronous client
 * ["sequence", method, n]         n calls one after the other, the number of each as its parameter
 * ["together", method, n]         n calls at once; with the asynchronous client alone
 * ["close"]
 * </pre>
 */
public final class Peer {
    /** What is remote, as a program would have it. */
    public interface Adder {
        int add(int a, int b);
    }

    /** What each of the three clients can do. */
    private abstract static class Kind {
        abstract JsonNode call(String method, Object params) throws Throwable;

        void notify(String method, Object params) throws Throwable {
            throw new UnsupportedOperationException("notify");
        }

        Adder adder() throws IOException {
            throw new UnsupportedOperationException("add");
        }

        Object together(String method, int n) throws Throwable {
            throw new UnsupportedOperationException("together");
        }

        void close() throws IOException {
        }
    }

    private static final class Stream extends Kind {
        private final JsonRpcClient client = new JsonRpcClient();
        private final Socket socket;

        Stream(int port) throws IOException {
            socket = new Socket("127.0.0.1", port);
            socket.setTcpNoDelay(true);
        }

        @Override
        JsonNode call(String method, Object params) throws Throwable {
            return client.invokeAndReadResponse(
                    method, params, JsonNode.class, socket.getOutputStream(), socket.getInputStream());
        }

        @Override
        void notify(String method, Object params) throws Throwable {
            client.invokeNotification(method, params, socket.getOutputStream());
        }

        @Override
        Adder adder() throws IOException {
            return ProxyUtil.createClientProxy(Peer.class.getClassLoader(), Adder.class, client, socket);
        }

        @Override
        void close() throws IOException {
            socket.close();
        }
    }

    private static final class Http extends Kind {
        private final JsonRpcHttpClient client;

        Http(URL url) {
            client = new JsonRpcHttpClient(url);
        }

        @Override
        JsonNode call(String method, Object params) throws Throwable {
            return client.invoke(method, params, JsonNode.class);
        }

        @Override
        Adder adder() {
            return ProxyUtil.createClientProxy(Peer.class.getClassLoader(), Adder.class, client);
        }
    }

    private static final class Async extends Kind {
        private final JsonRpcHttpAsyncClient client;

        Async(URL url) {
            client = new JsonRpcHttpAsyncClient(url);
        }

        @Override
        JsonNode call(String method, Object params) throws Throwable {
            return of(client.invoke(method, params, JsonNode.class));
        }

        @Override
        Object together(String method, int n) throws Throwable {
            List<Future<JsonNode>> calls = new ArrayList<>();
            for (int i = 0; i < n; i++) {
                calls.add(client.invoke(method, List.of(i), JsonNode.class));
            }
            List<JsonNode> results = new ArrayList<>();
            for (Future<JsonNode> call : calls) {
                results.add(of(call));
            }
            return results;
        }

        private static JsonNode of(Future<JsonNode> call) throws Throwable {
            try {
                return call.get();
            } catch (ExecutionException error) {
                throw error.getCause();
            }
        }
    }

    private static Object obey(Kind kind, List<?> words) throws Throwable {
        Object second = words.size() > 1 ? words.get(1) : null;
        Object third = words.size() > 2 ? words.get(2) : null;
        switch ((String) words.get(0)) {
            case "call":
                return kind.call((String) second, third);
            case "notify":
                kind.notify((String) second, third);
                return null;
            case "add":
                return kind.adder().add((Integer) second, (Integer) third);
            case "sequence":
                List<JsonNode> results = new ArrayList<>();
                for (int i = 0; i < (Integer) third; i++) {
                    results.add(kind.call((String) second, List.of(i)));
                }
                return results;
            case "together":
                return kind.together((String) second, (Integer) third);
            case "close":
                kind.close();
                return null;
            default:
                throw new IllegalArgumentException(words.toString());
        }
    }

    private static Kind connect(String kind, int port) throws IOException {
        URL url = new URL("http://127.0.0.1:" + port + "/");
        return switch (kind) {
            case "stream" -> new Stream(port);
            case "http" -> new Http(url);
            case "async" -> new Async(url);
            default -> throw new IllegalArgumentException(kind);
        };
    }

    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        Kind kind = null;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> outcome = new HashMap<>();
            try {
                List<?> words = mapper.readValue(line, List.class);
                if (words.get(0).equals("connect")) {
                    kind = connect((String) words.get(1), (Integer) words.get(2));
                    outcome.put("result", null);
                } else {
                    outcome.put("result", obey(kind, words));
                }
            } catch (JsonRpcClientException error) {
                outcome.put("error", Arrays.asList(error.getCode(), error.getMessage(), error.getData()));
            } catch (Throwable error) {
                outcome.put("raised", error.toString());
            }
            out.print(mapper.writeValueAsString(outcome) + "\n");
            out.flush();
        }
        System.exit(0); // the asynchronous client has threads of its own
    }
}
