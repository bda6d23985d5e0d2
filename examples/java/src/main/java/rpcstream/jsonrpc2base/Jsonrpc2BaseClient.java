package rpcstream.jsonrpc2base;

import com.thetransactioncompany.jsonrpc2.JSONRPC2Error;
import com.thetransactioncompany.jsonrpc2.JSONRPC2ParseException;
import com.thetransactioncompany.jsonrpc2.JSONRPC2Request;
import com.thetransactioncompany.jsonrpc2.JSONRPC2Response;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.net.InetSocketAddress;
import java.net.ProtocolException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;

/**
 * Calls the methods of a server over one TCP connection, with the messages of jsonrpc2-base.
 *
 * <p>After an {@link IOException} the client must be closed: what is still on its way could be taken for the answer to
 * the next call.
 */
public final class Jsonrpc2BaseClient implements AutoCloseable {
    private final Socket socket = new Socket();
    private final BufferedReader in;
    private final Writer out;
    private long lastId;

    /** Connect; the time-out, of a millisecond at least, is for that and for each wait for data. */
    public Jsonrpc2BaseClient(String host, int port, Duration timeout) throws IOException {
        try {
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(Math.toIntExact(timeout.toMillis()));
            socket.connect(new InetSocketAddress(host, port), socket.getSoTimeout());
            // With a decoder, instead of a charset, what is not UTF-8 is refused and not replaced.
            in = new BufferedReader(
                    new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8.newDecoder()));
            out = new BufferedWriter(new OutputStreamWriter(socket.getOutputStream(), StandardCharsets.UTF_8));
        } catch (IOException | RuntimeException error) {
            socket.close();
            throw error;
        }
    }

    /**
     * Call a method with parameters by position.
     *
     * @throws JSONRPC2Error the server answered with an error
     * @throws IOException the connection failed, or what came is not the reply to this call
     */
    public synchronized Object call(String method, List<Object> params) throws IOException, JSONRPC2Error {
        long id = ++lastId;
        out.write(new JSONRPC2Request(method, params, id).toString());
        out.write('\n');
        out.flush();
        String line = in.readLine();
        if (line == null) {
            throw new EOFException("the server closed the connection and has not answered " + method);
        }
        JSONRPC2Response response = parse(line);
        // A server that cannot make out the id of what it refuses answers with null. Only this call is open.
        boolean refused = response.getID() == null && !response.indicatesSuccess();
        if (!refused && !(response.getID() instanceof Number answered && answered.longValue() == id)) {
            throw new ProtocolException("a reply to " + response.getID() + " came where one to " + id + " was due");
        }
        if (!response.indicatesSuccess()) {
            throw response.getError();
        }
        return response.getResult();
    }

    /** In the form that existing callers use. It ignores the version: older servers leave it out of their errors. */
    @SuppressWarnings("deprecation")
    private static JSONRPC2Response parse(String line) throws IOException {
        try {
            return JSONRPC2Response.parse(line, false, true, false);
        } catch (JSONRPC2ParseException error) {
            throw (IOException) new ProtocolException("a reply cannot be read: " + error.getMessage()).initCause(error);
        }
    }

    /** Tell the server that no more calls come, with an empty line, and close. */
    @Override
    public synchronized void close() throws IOException {
        try (socket) {
            out.write('\n');
            out.flush();
        } catch (IOException alreadyGone) {
            // then there is nobody to tell
        }
    }
}
