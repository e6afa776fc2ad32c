/* detokenizer.c: see detokenizer.h. */
#include "text/detokenizer.h"

#include "text/utf8.h"

void detokenizer_init(Detokenizer *d, const Tokenizer *tok, int keep_special)
{
    *d = (Detokenizer){.tok = tok, .keep_special = keep_special};
}

void detokenizer_push(Detokenizer *d, int32_t token, StrBuf *out)
{
    if (!d->keep_special && tokenizer_is_special(d->tok, token)) return;
    size_t len;
    const char *bytes = tokenizer_bytes(d->tok, token, &len);
    for (size_t i = 0; i < len; i++) {
        char text[8];
        int n = utf8_push(d->held, &d->n_held, (unsigned char)bytes[i], text);
        strbuf_add(out, text, (size_t)n);
    }
}

void detokenizer_finish(Detokenizer *d, StrBuf *out)
{
    if (d->n_held) strbuf_puts(out, "\xEF\xBF\xBD");
    d->n_held = 0;
}
