#!/bin/sh
# Prove that the token is here, without showing it.
printf %s "$HARBOUR_TOKEN" | sha256sum | cut -d ' ' -f 1
