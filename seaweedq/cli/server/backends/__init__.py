"""The services and files that the settings of a broker name: store, coordination, journal."""
