package rpcstream.simulation;

import rpcstream.jsonrpc2base.Jsonrpc2BaseClient;

/** The simulation with jsonrpc2-base, as Polysun's plug-in calls. */
public final class Jsonrpc2BaseSimulation {
    private Jsonrpc2BaseSimulation() {}

    /** Takes {@code [COUNT [HOST:PORT]]}. Ends with status 0 only where every reply was right. */
    public static void main(String[] args) throws Exception {
        Arguments arguments = Arguments.of(args);
        try (var client = new Jsonrpc2BaseClient(arguments.host(), arguments.port(), Simulation.TIMEOUT)) {
            new Simulation(client::call).run(arguments.count());
        }
    }
}
