package rpcstream.simulation;

import rpcstream.client.RpcClient;

/** The simulation with {@link RpcClient}, so with nothing but the JDK. */
public final class PlainSimulation {
    private PlainSimulation() {}

    /** Takes {@code [COUNT [HOST:PORT]]}. Ends with status 0 only where every reply was right. */
    public static void main(String[] args) throws Exception {
        Arguments arguments = Arguments.of(args);
        try (RpcClient client = RpcClient.connect(arguments.host(), arguments.port(), Simulation.TIMEOUT)) {
            new Simulation(client::call).run(arguments.count());
        }
    }
}
