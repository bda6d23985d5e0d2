package rpcstream.client;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * An array, an image or bytes: a JSON object that says with {@code "$type"} what its {@code "data"} is.
 *
 * <p>As a parameter it may stand wherever a value may. In a result it is a {@link Map}, which {@link #of} takes. Its data
 * travels as base64 in the JSON, or behind it as it is where {@link RpcClient#offerFrames} was called.
 */
public final class Tagged {
    /** The key of the tag. */
    static final String TAG = "$type";

    /** In the JSON of a frame, the only member of the object that stands for a payload: its number. */
    static final String BIN = "$bin";

    private final Map<String, Object> members;
    private final ByteBuffer data;

    private Tagged(Map<String, Object> members, ByteBuffer data) {
        this.members = members;
        this.data = data.slice().order(ByteOrder.LITTLE_ENDIAN);
    }

    /** An image file: its format, such as {@code "png"} or {@code "jpeg"}, and its bytes. */
    public static Tagged image(String format, byte[] file) {
        return new Tagged(Map.of(TAG, "image", "format", format), ByteBuffer.wrap(file));
    }

    /** Bytes. Taken as they are: not to be changed before the call has been answered. */
    public static Tagged bytes(byte[] bytes) {
        return new Tagged(Map.of(TAG, "bytes"), ByteBuffer.wrap(bytes));
    }

    /** An array of float64, row by row; without a shape of one dimension. */
    public static Tagged array(double[] values, int... shape) {
        ByteBuffer data = allocated(values.length, Double.BYTES);
        data.asDoubleBuffer().put(values);
        return array("<f8", values.length, shape, data);
    }

    /** An array of float32, row by row; without a shape of one dimension. */
    public static Tagged array(float[] values, int... shape) {
        ByteBuffer data = allocated(values.length, Float.BYTES);
        data.asFloatBuffer().put(values);
        return array("<f4", values.length, shape, data);
    }

    /** An array of int64, row by row; without a shape of one dimension. */
    public static Tagged array(long[] values, int... shape) {
        ByteBuffer data = allocated(values.length, Long.BYTES);
        data.asLongBuffer().put(values);
        return array("<i8", values.length, shape, data);
    }

    /** An array of int32, row by row; without a shape of one dimension. */
    public static Tagged array(int[] values, int... shape) {
        ByteBuffer data = allocated(values.length, Integer.BYTES);
        data.asIntBuffer().put(values);
        return array("<i4", values.length, shape, data);
    }

    /**
     * The tagged object in a result.
     *
     * @throws IllegalArgumentException it is none, or its data is not base64
     */
    public static Tagged of(Object result) {
        if (!(result instanceof Map<?, ?> map) || !(map.get(TAG) instanceof String)) {
            throw new IllegalArgumentException("no tagged object: " + result);
        }
        Map<String, Object> members = new LinkedHashMap<>();
        map.forEach((key, value) -> members.put((String) key, value));
        Object data = members.remove("data");
        if (data instanceof ByteBuffer payload) {
            return new Tagged(members, payload);
        } else if (data instanceof String text) {
            return new Tagged(members, ByteBuffer.wrap(Base64.getDecoder().decode(text)));
        }
        throw new IllegalArgumentException("a tagged object without data: " + members.get(TAG));
    }

    /** What it is: {@code "ndarray"}, {@code "image"}, {@code "bytes"}. */
    public String type() {
        return (String) members.get(TAG);
    }

    /** What it says besides its data, such as {@code "dtype"} or {@code "format"}; null for what it does not say. */
    public Object member(String name) {
        return members.get(name);
    }

    /** The extents of an array. */
    public int[] shape() {
        return ((List<?>) members.get("shape")).stream().mapToInt(each -> ((Number) each).intValue()).toArray();
    }

    /** The data, as a view of its own; numbers in it are little-endian. */
    public ByteBuffer data() {
        return data.duplicate().order(ByteOrder.LITTLE_ENDIAN);
    }

    /** A copy of the data. */
    public byte[] bytes() {
        byte[] copy = new byte[data.remaining()];
        data().get(copy);
        return copy;
    }

    /** The values of an array of float64, row by row. IllegalStateException if it is of another type. */
    public double[] doubles() {
        check("<f8");
        double[] values = new double[data.remaining() / Double.BYTES];
        data().asDoubleBuffer().get(values);
        return values;
    }

    /** The values of an array of float32, row by row. IllegalStateException if it is of another type. */
    public float[] floats() {
        check("<f4");
        float[] values = new float[data.remaining() / Float.BYTES];
        data().asFloatBuffer().get(values);
        return values;
    }

    /** The values of an array of int64, row by row. IllegalStateException if it is of another type. */
    public long[] longs() {
        check("<i8");
        long[] values = new long[data.remaining() / Long.BYTES];
        data().asLongBuffer().get(values);
        return values;
    }

    /** The object to be written, with this in the place of its data. */
    Map<String, Object> with(Object written) {
        Map<String, Object> all = new LinkedHashMap<>(members);
        all.put("data", written);
        return all;
    }

    /** The data as base64. */
    String base64() {
        ByteBuffer text = Base64.getEncoder().encode(data());
        return new String(text.array(), 0, text.limit(), StandardCharsets.ISO_8859_1);
    }

    private void check(String dtype) {
        if (!dtype.equals(members.get("dtype"))) {
            throw new IllegalStateException("the values are " + members.get("dtype") + ", not " + dtype);
        }
    }

    private static ByteBuffer allocated(int count, int size) {
        return ByteBuffer.allocate(Math.multiplyExact(count, size)).order(ByteOrder.LITTLE_ENDIAN);
    }

    private static Tagged array(String dtype, int count, int[] shape, ByteBuffer data) {
        int[] extents = shape.length == 0 ? new int[] {count} : shape.clone();
        if (Arrays.stream(extents).asLongStream().reduce(1, Math::multiplyExact) != count) {
            throw new IllegalArgumentException(count + " values do not have the shape " + Arrays.toString(extents));
        }
        Map<String, Object> members = new LinkedHashMap<>();
        members.put(TAG, "ndarray");
        members.put("dtype", dtype);
        members.put("shape", extents);
        return new Tagged(members, data);
    }
}
