package rpcstream.simulation;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;

/**
 * A simulation that asks the controller {@code control_flowrate} in each time step, and measures what a call takes.
 *
 * <p>Knows nothing of connections: it is given something that calls. Each reply is checked, outside the time measured.
 */
public final class Simulation {
    /** The time-out of both programs. */
    static final Duration TIMEOUT = Duration.ofSeconds(10);

    private static final int WARM_UP = 20_000;
    private static final int STEP = 60;
    private static final int HOUR = 3600;
    private static final int DAY = 24 * HOUR;

    /** The pump: its greatest flow in litres an hour, and the hours when it starts and stops. */
    private static final double GREATEST = 150;
    private static final int START = 6;
    private static final int STOP = 22;

    /** Calls a method of the server with parameters by position. */
    @FunctionalInterface
    public interface Caller {
        /** The result; numbers as any {@link Number}, arrays as {@link List}. */
        Object call(String method, List<Object> params) throws Exception;
    }

    private record Request(String method, List<Object> params, Object expected) {}

    @FunctionalInterface
    private interface Requests {
        Request at(int step);
    }

    private final Caller caller;

    Simulation(Caller caller) {
        this.caller = caller;
    }

    /**
     * Say hello, then make so many calls of each kind and print what they took.
     *
     * @throws IllegalStateException a reply is not what it should be
     */
    void run(int count) throws Exception {
        check(new Request("print", List.of("a simulation in Java begins"), null));
        Request ping = new Request("ping", List.of(), "pong");
        check(ping);
        measure("control_flowrate", count, Simulation::flowrate);
        measure("ping", count, step -> ping);
    }

    private void measure(String name, int count, Requests requests) throws Exception {
        for (int step = 0; step < Math.min(count, WARM_UP); step++) {
            check(requests.at(step));
        }
        long[] nanoseconds = new long[count];
        for (int step = 0; step < count; step++) {
            nanoseconds[step] = check(requests.at(step));
        }
        Arrays.sort(nanoseconds);
        double mean = Arrays.stream(nanoseconds).average().orElseThrow() / 1e6;
        double half = nanoseconds[count / 2] / 1e6;
        double most = nanoseconds[(int) (count * 0.99)] / 1e6;
        String form = "%-16s %d calls, all right: mean %.4f ms, p50 %.4f ms, p99 %.4f ms%n";
        System.out.printf(Locale.ROOT, form, name, count, mean, half, most);
    }

    /** Make a call and look at its result; gives the nanoseconds of the call alone. */
    private long check(Request request) throws Exception {
        long began = System.nanoTime();
        Object result = caller.call(request.method, request.params);
        long taken = System.nanoTime() - began;
        if (!same(request.expected, result)) {
            throw new IllegalStateException(request + " gave " + result);
        }
        return taken;
    }

    /** As the simulation does it, in every parameter; the flow wanted and whether the pump is in use change. */
    private static Request flowrate(int step) {
        int now = step * STEP;
        boolean status = step % 10 != 9;
        double wanted = step % 17 * 10;
        List<Object> params = List.of(
                now, // simulationTime
                status,
                List.of(20.5, 61.25 + step % 100 / 8.0, -3.0, 0.0), // sensors
                List.of(true, true, true, false), // sensorsUsed
                List.of(wanted, GREATEST, (double) START, (double) STOP), // properties
                List.of("Z\u00fcrich", "a \"pump\""), // propertiesStr
                false, // preRun
                List.of(true, true), // controlSignalsUsed
                1, // numLogValues
                0, // stage
                STEP, // fixedTimestep
                0, // verboseLevel
                Map.of("latitude", 47.37)); // parameters
        return new Request("control_flowrate", params, expected(now, status, wanted));
    }

    /** What the controller must answer: control signals, log values, time points. */
    private static Object expected(int now, boolean status, double wanted) {
        int midnight = now - now % DAY;
        int starts = midnight + START * HOUR;
        int stops = midnight + STOP * HOUR;
        boolean on = status && starts <= now && now < stops;
        double speed = on ? Math.min(wanted / GREATEST, 1) : 0;
        int coming = now < starts ? starts : now < stops ? stops : starts + DAY;
        return List.of(List.of(on ? 1.0 : 0.0, speed), List.of(speed * GREATEST), List.of(coming));
    }

    /** Equal, whatever classes of numbers a JSON library prefers; but 1 is not 1.0. */
    private static boolean same(Object expected, Object actual) {
        if (expected instanceof List<?> wanted && actual instanceof List<?> given) {
            boolean same = wanted.size() == given.size();
            for (int each = 0; same && each < wanted.size(); each++) {
                same = same(wanted.get(each), given.get(each));
            }
            return same;
        } else if (expected instanceof Integer wanted) {
            return (actual instanceof Integer || actual instanceof Long) && ((Number) actual).longValue() == wanted;
        } else if (expected instanceof Double wanted) {
            return actual instanceof Number given && !(actual instanceof Integer || actual instanceof Long)
                    && given.doubleValue() == wanted;
        }
        return Objects.equals(expected, actual);
    }
}
