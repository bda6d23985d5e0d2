package rpcstream.client;

import java.lang.reflect.Array;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * JSON (RFC 8259) to Java and back, as strict as the servers are that it talks to.
 *
 * <p>What is read becomes {@code null}, {@link Boolean}, {@link String}, {@link Long} ({@link BigInteger} where it does
 * not fit), {@link Double} (whatever has a fraction or an exponent), {@link List} or {@link Map}, the last in the order
 * of the text. What is refused, in either direction, is an {@link IllegalArgumentException}.
 */
public final class Json {
    /** How deep lists and maps may be nested; that of rpcstream's servers. */
    public static final int MAX_DEPTH = 128;

    /** How long a number may be written: to read one takes time that grows with the square of its length. */
    private static final int MAX_NUMBER_LENGTH = 1000;

    private static final String HEX = "0123456789abcdef";

    private Json() {}

    /**
     * A value as JSON in one line.
     *
     * <p>Takes what {@link #read} gives, {@link Tagged} objects, and all sorts of numbers, iterables and arrays
     * ({@code double[]} too, as lists of numbers). A float is written as short as a float can be, so 0.1f is 0.1.
     *
     * @throws IllegalArgumentException for NaN and the infinities, half a surrogate pair, keys that are not strings,
     *     nesting over {@link #MAX_DEPTH} (so for a list that contains itself) and objects of other classes
     */
    public static String write(Object value) {
        return write(value, null);
    }

    /**
     * The value of a JSON text.
     *
     * @throws IllegalArgumentException for what is not JSON, with the place; and for half a surrogate pair, a number
     *     that no double holds, and nesting over {@link #MAX_DEPTH}
     */
    public static Object read(String text) {
        return new Reader(text).document();
    }

    /**
     * A value as JSON in one line, its large payloads beside it.
     *
     * @param payloads gets the data of {@link Tagged} objects from {@link Frame#SHORTEST} bytes on, for a frame; null:
     *     all is base64
     */
    static String write(Object value, List<ByteBuffer> payloads) {
        Writer writer = new Writer(payloads);
        writer.write(value, 0);
        return writer.out.toString();
    }

    private static int deeper(int depth) {
        if (depth == MAX_DEPTH) {
            throw new IllegalArgumentException("nested deeper than " + MAX_DEPTH);
        }
        return depth + 1;
    }

    private static void checkPair(CharSequence text, int at) {
        if (at + 1 == text.length() || !Character.isSurrogatePair(text.charAt(at), text.charAt(at + 1))) {
            throw new IllegalArgumentException("half a surrogate pair at character " + at + " of a string");
        }
    }

    /** One text that is written. */
    private static final class Writer {
        private final StringBuilder out = new StringBuilder(256);
        private final List<ByteBuffer> payloads;

        Writer(List<ByteBuffer> payloads) {
            this.payloads = payloads;
        }

        private void write(Object value, int depth) {
            if (value == null || value instanceof Boolean) {
                out.append(value);
            } else if (value instanceof CharSequence text) {
                writeString(text);
            } else if (value instanceof Number number) {
                writeNumber(number);
            } else if (value instanceof Map<?, ?> map) {
                writeMap(map, deeper(depth));
            } else if (value instanceof Iterable<?> items) {
                writeItems(items, deeper(depth));
            } else if (value instanceof Tagged tagged) {
                writeMap(tagged.with(placed(tagged)), deeper(depth));
            } else {
                writeItems(itemsOf(value), deeper(depth));
            }
        }

        /** What stands for the data of a tagged object. */
        private Object placed(Tagged tagged) {
            ByteBuffer data = tagged.data();
            if (payloads == null || data.remaining() < Frame.SHORTEST || payloads.size() == Frame.MOST) {
                return tagged.base64();
            }
            payloads.add(data);
            return Map.of(Tagged.BIN, payloads.size() - 1);
        }

        private void writeNumber(Number number) {
            if (number instanceof Double || number instanceof Float) {
                if (!Double.isFinite(number.doubleValue())) {
                    throw new IllegalArgumentException("JSON has no " + number);
                }
            } else if (!(number instanceof Long || number instanceof Integer || number instanceof Short
                    || number instanceof Byte || number instanceof BigInteger || number instanceof BigDecimal)) {
                throw new IllegalArgumentException("cannot be written as JSON: " + number.getClass().getName());
            }
            out.append(number);
        }

        private void writeMap(Map<?, ?> map, int depth) {
            char before = '{';
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                if (!(entry.getKey() instanceof CharSequence key)) {
                    throw new IllegalArgumentException("a key must be a string, not " + entry.getKey());
                }
                out.append(before);
                writeString(key);
                out.append(':');
                write(entry.getValue(), depth);
                before = ',';
            }
            out.append(before == '{' ? "{}" : "}");
        }

        private void writeItems(Iterable<?> items, int depth) {
            char before = '[';
            for (Object item : items) {
                out.append(before);
                write(item, depth);
                before = ',';
            }
            out.append(before == '[' ? "[]" : "]");
        }

        private static List<?> itemsOf(Object value) {
            if (value instanceof Object[] objects) {
                return Arrays.asList(objects);
            } else if (!value.getClass().isArray()) {
                throw new IllegalArgumentException("cannot be written as JSON: " + value.getClass().getName());
            }
            int length = Array.getLength(value);
            List<Object> items = new ArrayList<>(length);
            for (int each = 0; each < length; each++) {
                items.add(Array.get(value, each));
            }
            return items;
        }

        private void writeString(CharSequence text) {
            out.append('"');
            for (int at = 0; at < text.length(); at++) {
                char letter = text.charAt(at);
                if (letter == '"' || letter == '\\') {
                    out.append('\\').append(letter);
                } else if (letter < ' ') {
                    writeControl(letter);
                } else if (Character.isSurrogate(letter)) {
                    checkPair(text, at);
                    out.append(letter).append(text.charAt(++at));
                } else {
                    out.append(letter);
                }
            }
            out.append('"');
        }

        private void writeControl(char letter) {
            switch (letter) {
                case '\b' -> out.append("\\b");
                case '\f' -> out.append("\\f");
                case '\n' -> out.append("\\n");
                case '\r' -> out.append("\\r");
                case '\t' -> out.append("\\t");
                default -> out.append("\\u00").append(HEX.charAt(letter >> 4)).append(HEX.charAt(letter & 15));
            }
        }
    }

    /** One text, and how far it has been read. */
    private static final class Reader {
        /** Stands for the end of the text. */
        private static final char END = '\0';

        private final String text;
        private int at;
        private int depth;

        Reader(String text) {
            this.text = text;
        }

        Object document() {
            Object value = value();
            if (next() != END || at < text.length()) {
                throw wrong("the end");
            }
            return value;
        }

        /** The character to read next, behind white space; it stays to be read. */
        private char next() {
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
            return here();
        }

        private char here() {
            return at < text.length() ? text.charAt(at) : END;
        }

        private boolean take(char wanted) {
            if (next() != wanted || at == text.length()) {
                return false;
            }
            at++;
            return true;
        }

        private IllegalArgumentException wrong(String wanted) {
            String got = at < text.length() ? "'" + text.charAt(at) + "'" : "the end";
            return new IllegalArgumentException("not JSON: " + wanted + " wanted at character " + at + ", not " + got);
        }

        private Object value() {
            return switch (next()) {
                case '{' -> object();
                case '[' -> array();
                case '"' -> string();
                case 't' -> word("true", true);
                case 'f' -> word("false", false);
                case 'n' -> word("null", null);
                default -> number();
            };
        }

        private Object word(String word, Object value) {
            if (!text.startsWith(word, at)) {
                throw wrong("a value");
            }
            at += word.length();
            return value;
        }

        private Map<String, Object> object() {
            depth = deeper(depth);
            at++;
            Map<String, Object> members = new LinkedHashMap<>();
            if (!take('}')) {
                do {
                    if (next() != '"') {
                        throw wrong("a key");
                    }
                    String key = string();
                    if (!take(':')) {
                        throw wrong("':'");
                    }
                    members.put(key, value());
                } while (take(','));
                if (!take('}')) {
                    throw wrong("',' or '}'");
                }
            }
            depth--;
            return members;
        }

        private List<Object> array() {
            depth = deeper(depth);
            at++;
            List<Object> items = new ArrayList<>();
            if (!take(']')) {
                do {
                    items.add(value());
                } while (take(','));
                if (!take(']')) {
                    throw wrong("',' or ']'");
                }
            }
            depth--;
            return items;
        }

        private String string() {
            int from = ++at;
            StringBuilder unescaped = null;
            boolean surrogates = false;
            while (here() != '"') {
                char letter = here();
                if (letter < ' ') {
                    throw wrong("the rest of a string");
                } else if (letter == '\\') {
                    unescaped = unescaped == null ? new StringBuilder() : unescaped;
                    unescaped.append(text, from, at++);
                    letter = escaped();
                    unescaped.append(letter);
                    from = at;
                } else {
                    at++;
                }
                surrogates |= Character.isSurrogate(letter);
            }
            String rest = text.substring(from, at++);
            String string = unescaped == null ? rest : unescaped.append(rest).toString();
            for (int each = 0; surrogates && each < string.length(); each++) {
                if (Character.isSurrogate(string.charAt(each))) {
                    checkPair(string, each++);
                }
            }
            return string;
        }

        private char escaped() {
            char letter = here();
            int known = "\"\\/bfnrt".indexOf(letter);
            if (known < 0 && letter != 'u') {
                throw wrong("one of \"\\/bfnrtu");
            }
            at++;
            return known < 0 ? hexadecimal() : "\"\\/\b\f\n\r\t".charAt(known);
        }

        private char hexadecimal() {
            int code = 0;
            for (int end = at + 4; at < end; at++) {
                int digit = HEX.indexOf(Character.toLowerCase(here()));
                if (digit < 0) {
                    throw wrong("a hexadecimal digit");
                }
                code = code << 4 | digit;
            }
            return (char) code;
        }

        private Object number() {
            int from = at;
            if (here() == '-') {
                at++;
            }
            if (here() == '0') {
                at++;
            } else {
                digits(at == from ? "a value" : "a digit");
            }
            boolean whole = true;
            if (here() == '.') {
                at++;
                digits("a digit");
                whole = false;
            }
            if (here() == 'e' || here() == 'E') {
                at++;
                if (here() == '+' || here() == '-') {
                    at++;
                }
                digits("a digit");
                whole = false;
            }
            if (at - from > MAX_NUMBER_LENGTH) {
                throw new IllegalArgumentException("a number of " + (at - from) + " characters at " + from);
            }
            String number = text.substring(from, at);
            return whole ? integer(number) : decimal(number);
        }

        private void digits(String wanted) {
            int from = at;
            while (here() >= '0' && here() <= '9') {
                at++;
            }
            if (at == from) {
                throw wrong(wanted);
            }
        }

        private static Object integer(String number) {
            if (number.length() <= 18) {
                return Long.parseLong(number);
            }
            BigInteger integer = new BigInteger(number);
            return integer.bitLength() < Long.SIZE ? (Object) integer.longValue() : integer;
        }

        private static Object decimal(String number) {
            double decimal = Double.parseDouble(number);
            if (Double.isInfinite(decimal)) {
                throw new IllegalArgumentException("a number that no double holds: " + number);
            }
            return decimal;
        }
    }
}
