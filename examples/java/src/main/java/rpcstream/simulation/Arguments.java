package rpcstream.simulation;

/** What both programs take: {@code [COUNT [HOST:PORT]]}. */
record Arguments(int count, String host, int port) {
    private static final String COUNT = "100000";
    private static final String ADDRESS = "127.0.0.1:2102";

    /** Read the command line; ends the program with status 2 where that cannot be done. */
    static Arguments of(String... args) {
        String address = args.length > 1 ? args[1] : ADDRESS;
        int colon = address.lastIndexOf(':');
        try {
            int count = Integer.parseInt(args.length > 0 ? args[0] : COUNT);
            int port = Integer.parseInt(address.substring(colon + 1));
            if (count > 0 && 0 < port && port < 1 << 16 && colon > 0 && args.length <= 2) {
                return new Arguments(count, address.substring(0, colon), port);
            }
        } catch (NumberFormatException error) {
            // said below
        }
        System.err.println("arguments: [COUNT [HOST:PORT]], without them " + COUNT + " " + ADDRESS);
        System.exit(2);
        throw new AssertionError();
    }
}
