"""What every framework binding shares: the client, the basic calls, process sets, errors and settings.

Nothing here knows a framework, and nothing here imports grpc: it runs inside the training process.
"""
