package rpcstream.client;

import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.ProtocolException;
import java.net.Socket;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Calls the methods of a server over one TCP connection: JSON-RPC 2.0, one message a line.
 *
 * <p>Threads may share a client; their calls go one after the other. After an {@link IOException} the client is closed:
 * what is still on its way could be taken for the answer to the next call. Whether the call was carried out is then
 * unknown. To go on, connect anew.
 */
public final class RpcClient implements AutoCloseable {
    /** The longest reply that is read, in bytes; that of rpcstream's servers. */
    public static final int MAX_REPLY = 64 << 20;

    private final ReentrantLock lock = new ReentrantLock();
    private final Socket socket;
    private final InputStream in;
    private final OutputStream out;
    private final long timeout;
    private final byte[] chunk = new byte[8192];
    private int next;
    private int end;
    private long lastId;
    private boolean frames;

    private RpcClient(Socket socket, long timeout) throws IOException {
        this.socket = socket;
        this.in = socket.getInputStream();
        this.out = socket.getOutputStream();
        this.timeout = timeout;
    }

    /**
     * Open a connection.
     *
     * @param timeout for connecting, and for each reply from when its request is sent until its last byte is here;
     *     above zero, and rounded up to milliseconds. Sending has none: {@link #close} from another thread ends it.
     */
    public static RpcClient connect(String host, int port, Duration timeout) throws IOException {
        if (timeout.isZero() || timeout.isNegative()) {
            throw new IllegalArgumentException("a time-out must be above zero, not " + timeout);
        }
        Socket socket = new Socket();
        try {
            socket.setTcpNoDelay(true);
            socket.connect(new InetSocketAddress(host, port), milliseconds(timeout.toNanos()));
            return new RpcClient(socket, timeout.toNanos());
        } catch (IOException | RuntimeException error) {
            socket.close();
            throw error;
        }
    }

    /** Call a method without parameters. For the rest see {@link #call(String, List)}. */
    public Object call(String method) throws IOException, RpcException {
        return exchange(method, null);
    }

    /**
     * Call a method with parameters by position.
     *
     * @return the result, as {@link Json#read} gives it
     * @throws RpcException the server answered with an error
     * @throws SocketTimeoutException there was no reply in time
     * @throws ProtocolException what came is not the reply to this call
     * @throws IllegalArgumentException the parameters cannot be written as JSON; nothing was sent
     */
    public Object call(String method, List<?> params) throws IOException, RpcException {
        return exchange(method, params);
    }

    /** Call a method with parameters by name. For the rest see {@link #call(String, List)}. */
    public Object call(String method, Map<String, ?> params) throws IOException, RpcException {
        return exchange(method, params);
    }

    /**
     * Ask the server whether it takes binary frames, in which arrays, images and bytes ({@link Tagged}) from 4 KiB on
     * travel as they are. From then on both ends send these so; before, and if it takes none, as base64.
     *
     * @return whether it does; a server that does not know the question takes none
     */
    public boolean offerFrames() throws IOException {
        lock.lock();
        try {
            Object answer = exchange("rpc.hello", Map.of("binary", 1));
            frames = answer instanceof Map<?, ?> told && Long.valueOf(1).equals(told.get("binary"));
        } catch (RpcException refused) {
            frames = false;
        } finally {
            lock.unlock();
        }
        return frames;
    }

    /**
     * Tell the server that no more calls come, with an empty line, and close. A call of another thread that waits for
     * its reply fails at once.
     */
    @Override
    public void close() throws IOException {
        if (lock.tryLock()) { // else another thread may be in the middle of a line
            try {
                out.write('\n');
            } catch (IOException alreadyGone) {
                // then there is nobody to tell
            } finally {
                lock.unlock();
            }
        }
        socket.close();
    }

    private Object exchange(String method, Object params) throws IOException, RpcException {
        lock.lock();
        boolean answered = true;
        try {
            if (socket.isClosed()) {
                throw new SocketException("the connection is closed");
            }
            long id = ++lastId;
            List<ByteBuffer> payloads = frames ? new ArrayList<>() : null;
            byte[] request = request(method, params, id, payloads);
            answered = false;
            if (payloads == null || payloads.isEmpty()) {
                out.write(request);
            } else {
                Frame.write(out, request, payloads);
            }
            Reply reply = reply(method, id);
            answered = true;
            if (reply.error != null) {
                throw reply.error;
            }
            return reply.result;
        } finally {
            if (!answered) {
                socket.close();
            }
            lock.unlock();
        }
    }

    /**
     * A request, a line.
     *
     * @param payloads gets the large ones, for a frame; null: all is text
     */
    private static byte[] request(String method, Object params, long id, List<ByteBuffer> payloads) {
        Map<String, Object> request = new LinkedHashMap<>();
        request.put("jsonrpc", "2.0");
        request.put("method", method);
        if (params != null) {
            request.put("params", params);
        }
        request.put("id", id);
        String text = Json.write(request, payloads);
        if (payloads != null && !payloads.isEmpty() && !Frame.hasPlaces(text, payloads.size())) {
            payloads.clear();
            text = Json.write(request);
        }
        return (text + '\n').getBytes(StandardCharsets.UTF_8);
    }

    private record Reply(Object result, RpcException error) {}

    private Reply reply(String method, long id) throws IOException {
        long deadline = System.nanoTime() + timeout;
        while (true) {
            Map<?, ?> message = message(method, deadline);
            if (!message.containsKey("method")) {
                return reply(message, id);
            } else if (message.containsKey("id")) {
                throw new ProtocolException("the server calls " + message.get("method") + ": nobody answers here");
            } // a notification: not for us
        }
    }

    private Map<?, ?> message(String method, long deadline) throws IOException {
        String line = line(method, deadline);
        Object message = line.startsWith("@") && frames ? frame(line, method, deadline) : parsed(line);
        if (message instanceof Map<?, ?> members) {
            return members;
        }
        throw new ProtocolException("a reply must be an object");
    }

    private static Object parsed(String text) throws IOException {
        try {
            return Json.read(text);
        } catch (IllegalArgumentException error) {
            throw (IOException) new ProtocolException("a reply cannot be read: " + error.getMessage()).initCause(error);
        }
    }

    /** The message of a frame whose header has been read, with a {@link ByteBuffer} for each payload. */
    private Object frame(String header, String method, long deadline) throws IOException {
        Frame frame = Frame.of(header, MAX_REPLY);
        Object message = parsed(decoded(bytes(frame.json(), method, deadline)));
        List<ByteBuffer> payloads = new ArrayList<>();
        for (int size : frame.payloads()) {
            if (!payloads.isEmpty()) {
                bytes(Frame.padding(payloads.get(payloads.size() - 1).remaining()), method, deadline);
            }
            payloads.add(ByteBuffer.wrap(bytes(size, method, deadline)));
        }
        return Frame.filled(message, payloads);
    }

    /** The next so many bytes. */
    private byte[] bytes(int count, String method, long deadline) throws IOException {
        byte[] all = new byte[count];
        int at = Math.min(count, end - next);
        System.arraycopy(chunk, next, all, 0, at);
        next += at;
        while (at < count) {
            at += receive(all, at, method, deadline);
        }
        return all;
    }

    /** Unlike new String(bytes), a decoder refuses what is not UTF-8. */
    private static String decoded(byte[] text) throws IOException {
        return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(text)).toString();
    }

    private static Reply reply(Map<?, ?> message, long id) throws IOException {
        Object answered = message.get("id");
        boolean failed = message.containsKey("error");
        // A server that cannot make out the id of what it refuses answers with null. Only this call is open.
        if (!Long.valueOf(id).equals(answered) && !(failed && answered == null)) {
            throw new ProtocolException("a reply to " + answered + " came where one to " + id + " was due");
        } else if (failed == message.containsKey("result")) {
            throw new ProtocolException("a reply must have either a result or an error");
        } else if (!failed) {
            return new Reply(message.get("result"), null);
        } else if (message.get("error") instanceof Map<?, ?> error
                && error.get("code") instanceof Long code
                && error.get("message") instanceof String text) {
            return new Reply(null, new RpcException(code, text, error.get("data")));
        }
        throw new ProtocolException("an error must have a code and a message, not " + message.get("error"));
    }

    /** The next line, without its end. */
    private String line(String method, long deadline) throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        while (true) {
            int stop = next;
            while (stop < end && chunk[stop] != '\n') {
                stop++;
            }
            line.write(chunk, next, stop - next);
            if (line.size() > MAX_REPLY) {
                throw new ProtocolException("a reply is longer than " + MAX_REPLY + " bytes");
            }
            if (stop < end) {
                next = stop + 1;
                return decoded(line.toByteArray());
            }
            next = 0;
            end = 0; // stays so when the read fails
            end = receive(chunk, 0, method, deadline);
        }
    }

    /** Receive bytes into the rest of an array; gives how many came. */
    private int receive(byte[] into, int from, String method, long deadline) throws IOException {
        long left = deadline - System.nanoTime();
        try {
            if (left <= 0) {
                throw new SocketTimeoutException();
            }
            socket.setSoTimeout(milliseconds(left));
            int count = in.read(into, from, into.length - from);
            if (count < 0) {
                throw new EOFException("the server closed the connection and has not answered " + method);
            }
            return count;
        } catch (SocketTimeoutException late) {
            String waited = TimeUnit.NANOSECONDS.toMillis(timeout) + " ms";
            throw (IOException) new SocketTimeoutException("no reply to " + method + " in " + waited).initCause(late);
        }
    }

    /** Rounded up: to a socket 0 means for ever. */
    private static int milliseconds(long nanoseconds) {
        return (int) Math.min(Integer.MAX_VALUE, (nanoseconds - 1) / 1_000_000 + 1);
    }
}
