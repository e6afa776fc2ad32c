/* api_case.h: bodies of requests read with the defaults of a small server. */
#ifndef OFFSHOOT_TESTS_API_CASE_H
#define OFFSHOOT_TESTS_API_CASE_H

#include "server/api_request.h"

/* How the bodies of most cases begin. */
#define API_CASE_PROMPT "{\"prompt\": \"hello\", "
#define API_CASE_CHAT   "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}], "

/* What a body that says nothing else gets. */
extern const ApiDefaults api_case_defaults;

/* 0 or -1, as api_request_read; *r is to be freed. */
int api_case_read(ApiRequest *r, ApiKind kind, const char *text, size_t len, ApiError *err);

/* The same of a body that is good. */
ApiRequest api_case_ok(ApiKind kind, const char *text);

/* A chat that is good, for a model whose template is of this family. */
ApiRequest api_case_chat_of(ChatFamily family, const char *text);

#endif
