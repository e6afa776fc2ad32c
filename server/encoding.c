/* encoding.c: see encoding.h. */
#include "server/encoding.h"

#include "text/split.h"

/* What a text costs beside its bytes, in bytes: thousands of short ones are work too. */
enum { TEXT_COST = 256 };

static void close_text(Encoding *e)
{
    encoder_close(e->encoder);
    e->encoder = NULL;
}

void encoding_free(Encoding *e)
{
    close_text(e);
    strbuf_free(&e->chat);
    chat_marks_free(&e->marks);
}

int encoding_text(Encoding *e, const Tokenizer *tok, const char *text, size_t len,
                  int parse_special, TokenList *ids, const char *field, ApiError *err)
{
    e->field = field;
    e->all = (TextSpan){0, len};
    e->encoder = encoder_open(tok, text, len, &e->all, !parse_special, ids, &err->error);
    if (!e->encoder) return api_in_field(err, field);
    encoder_mark(e->encoder, len);
    return 0;
}

int chat_prompt(const Service *service, const ApiRequest *api, StrBuf *text, ChatMarks *marks,
                ApiError *err)
{
    if (chat_render(&service->tmpl, api->messages, api->prompt_tools, &api->chat, text, marks,
                    &err->error))
        return api_in_field(err, "messages");
    return 0;
}

int encoding_chat(Encoding *e, const Service *service, const ApiRequest *api, TokenList *ids,
                  ApiError *err)
{
    e->field = "messages";
    if (chat_prompt(service, api, &e->chat, &e->marks, err)) return -1;
    e->encoder = encoder_open(service->tok, strbuf_str(&e->chat), e->chat.len, e->marks.client,
                              e->marks.n_client, ids, &err->error);
    if (!e->encoder) return api_in_field(err, e->field);
    encoder_mark(e->encoder, e->marks.n_stable);
    encoder_mark_turn(e->encoder, e->marks.n_system);
    return 0;
}

int encoding_some(Encoding *e, size_t *budget, ApiError *err)
{
    int rc = encoder_some(e->encoder, budget, &err->error);
    if (rc > 0) return 1;
    budget_spend(budget, TEXT_COST);
    e->n_stable = encoder_stable(e->encoder);
    e->n_system = encoder_turn(e->encoder);
    close_text(e);
    return rc ? api_in_field(err, e->field) : 0;
}
