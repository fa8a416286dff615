"""A 2D racing game in its own process that never waits, its interface, simulation and scripted drivers.

Import what you need from the modules; the game's process must start fast, so this file imports nothing:
`interface` (CircuitInterface, circuit_config), `simulation` (CircuitSimulation, simulate_lap), `drivers`,
`track`, `picture` (PNG, needs matplotlib), `sketch` (terminal).
"""
