"""What anybody may ask the engine, once each: request, answer, who may, and what it is for.

An operation is a frozen record. Its docstring says what it does, its fields what it takes;
`Operation` names the type of its answer. `streamd.engine` has one handler for each. The stream
protocol, the HTTP API, the console and the command line translate: they make the record from what
they were sent, ask, and write the answer as their peers expect it. Nothing here knows a protocol,
the event loop, or the server.
"""
