package rpcstream.client;

/** The server's answer is an error. The connection is as good as before. */
public final class RpcException extends Exception {
    private static final long serialVersionUID = 1;

    private final long code;
    private final transient Object data;

    RpcException(long code, String message, Object data) {
        super(message);
        this.code = code;
        this.data = data;
    }

    /** -32601 for an unknown method, -32602 for parameters that do not fit; all are in rpcstream's docs/reference/wire.md. */
    public long code() {
        return code;
    }

    /** What the server adds to its message, as {@link Json#read} gives it; null where it adds nothing. */
    public Object data() {
        return data;
    }

    @Override
    public String toString() {
        return "error " + code + " of the server: " + getMessage() + (data == null ? "" : " " + data);
    }
}
