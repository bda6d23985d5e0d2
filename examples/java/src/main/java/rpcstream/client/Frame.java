package rpcstream.client;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.ProtocolException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A binary frame: a message whose payloads stand behind its JSON, as they are.
 *
 * <pre>
 * {@literal @}(bytes of the JSON) (bytes of each payload ...)(0 to 7 blanks)(line end)
 * (JSON with its line end)(payload)[(zeros to a multiple of 8)(payload) ...]
 * </pre>
 *
 * <p>Knows the bytes of a frame; not who may send one.
 *
 * @param json bytes of the JSON
 * @param payloads bytes of each payload
 */
record Frame(int json, int[] payloads) {
    /** Payloads from so many bytes on stand in a frame; shorter ones, and those beyond so many, are base64. */
    static final int SHORTEST = 4096;
    static final int MOST = 64;

    private static final Pattern HEADER = Pattern.compile("@(\\d{1,12})((?: \\d{1,12}){1,256}) {0,7}");

    /**
     * The header of a frame, a line without its end.
     *
     * @param limit bytes that JSON, payloads and zeros may have together
     * @throws ProtocolException it is malformed, or the frame is too long
     */
    static Frame of(String header, int limit) throws ProtocolException {
        Matcher matcher = HEADER.matcher(header);
        if (!matcher.matches()) {
            throw new ProtocolException("the header of a frame is malformed");
        }
        long json = Long.parseLong(matcher.group(1));
        long[] sizes = Arrays.stream(matcher.group(2).substring(1).split(" ")).mapToLong(Long::parseLong).toArray();
        long total = json + Arrays.stream(sizes).map(size -> (size + 7) / 8 * 8).sum();
        if (json == 0 || Arrays.stream(sizes).anyMatch(size -> size == 0)) {
            throw new ProtocolException("the header of a frame is malformed");
        } else if (total > limit) {
            throw new ProtocolException("a reply is longer than " + limit + " bytes");
        }
        return new Frame((int) json, Arrays.stream(sizes).mapToInt(size -> (int) size).toArray());
    }

    /** How many zeros stand behind a payload that another one follows. */
    static int padding(int size) {
        return -size & 7;
    }

    /** Write a message as a frame. */
    static void write(OutputStream out, byte[] json, List<ByteBuffer> payloads) throws IOException {
        StringBuilder header = new StringBuilder("@").append(json.length);
        payloads.forEach(each -> header.append(' ').append(each.remaining()));
        header.append(" ".repeat(padding(header.length() + 1 + json.length))).append('\n');
        ByteArrayOutputStream head = new ByteArrayOutputStream(header.length() + json.length);
        head.writeBytes(header.toString().getBytes(StandardCharsets.US_ASCII));
        head.writeBytes(json);
        head.writeTo(out);
        for (int each = 0; each < payloads.size(); each++) {
            ByteBuffer payload = payloads.get(each);
            out.write(payload.array(), payload.arrayOffset() + payload.position(), payload.remaining());
            if (each + 1 < payloads.size()) {
                out.write(new byte[padding(payload.remaining())]);
            }
        }
    }

    /** Whether a text has so many places for payloads: not if something else in it looks like one. */
    static boolean hasPlaces(String text, int count) {
        int found = 0;
        String place = '"' + Tagged.BIN + '"';
        for (int at = text.indexOf(place); at >= 0; at = text.indexOf(place, at + 1)) {
            found++;
        }
        return found == count;
    }

    /**
     * Put the payloads in the places that the message of a frame names for them.
     *
     * @throws ProtocolException one of them does not stand in exactly one place
     */
    static Object filled(Object message, List<ByteBuffer> payloads) throws ProtocolException {
        List<ByteBuffer> left = new ArrayList<>(payloads);
        Object filled = fill(message, left);
        if (left.stream().anyMatch(each -> each != null)) {
            throw new ProtocolException("a payload of a frame stands nowhere in its message");
        }
        return filled;
    }

    @SuppressWarnings("unchecked")
    private static Object fill(Object value, List<ByteBuffer> left) throws ProtocolException {
        if (value instanceof Map<?, ?> map) {
            if (map.size() == 1 && map.containsKey(Tagged.BIN)) {
                return taken(map.get(Tagged.BIN), left);
            }
            for (Map.Entry<String, Object> entry : ((Map<String, Object>) map).entrySet()) {
                entry.setValue(fill(entry.getValue(), left));
            }
        } else if (value instanceof List<?>) {
            List<Object> items = (List<Object>) value;
            for (int each = 0; each < items.size(); each++) {
                items.set(each, fill(items.get(each), left));
            }
        }
        return value;
    }

    private static ByteBuffer taken(Object number, List<ByteBuffer> left) throws ProtocolException {
        boolean known = number instanceof Long index && index >= 0 && index < left.size();
        ByteBuffer payload = known ? left.set(((Long) number).intValue(), null) : null;
        if (payload == null) {
            throw new ProtocolException("a frame has no payload " + number + ", or has it in two places");
        }
        return payload;
    }
}
