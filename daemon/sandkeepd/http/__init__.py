"""The HTTP gateway: the operations of the socket under the routes of sandbox sessions, for holders of API keys."""
