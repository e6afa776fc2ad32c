/* items.c: see items.h. */
#include "server/items.h"

#include <string.h>

#include "base/random.h"

typedef struct {
    ItemRow *row;
    const ItemSink *sink;
    void *ctx;
} Walk;

static void end_item(const Walk *w, int is_cut)
{
    if (!w->row->is_open) return;
    w->row->is_open = 0;
    w->row->item.is_cut = is_cut;
    if (w->row->item.kind == ITEM_CALL && !is_cut) w->row->n_whole++;
    w->sink->end(w->ctx, &w->row->item);
}

static void begin_item(const Walk *w, ItemKind kind, const char *name, size_t len)
{
    Item *item = &w->row->item;
    end_item(w, 0);
    item->kind = kind;
    item->index = w->row->n++;
    random_hex(item->id, (sizeof item->id - 1) / 2);
    random_hex(item->call_id, (sizeof item->call_id - 1) / 2);
    strbuf_clear(&item->name);
    strbuf_clear(&item->text);
    strbuf_add(&item->name, name, len);
    w->row->is_open = 1;
    if (w->sink->begin) w->sink->begin(w->ctx, item);
}

static void add_text(const Walk *w, const char *text, size_t len)
{
    if (!len) return;
    strbuf_add(&w->row->item.text, text, len);
    if (w->sink->more) w->sink->more(w->ctx, &w->row->item, text, len);
}

int item_is_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!text[i] || !strchr(" \t\r\n", text[i])) return 0;
    return 1;
}

/* Text and reasoning begin with the first of their kind, calls by a piece of their own. */
static void add_to(const Walk *w, ItemKind kind, const char *text, size_t len)
{
    ItemRow *row = w->row;
    if (kind == ITEM_TEXT) row->n_content += len;
    if (!row->is_open || row->item.kind != kind) {
        if (kind == ITEM_TEXT && item_is_blank(text, len)) {
            strbuf_add(&row->blanks, text, len);
            return;
        }
        begin_item(w, kind, "", 0);
        row->item.from = row->n_content - len - row->blanks.len;
        if (kind == ITEM_TEXT) add_text(w, strbuf_str(&row->blanks), row->blanks.len);
    }
    add_text(w, text, len);
    strbuf_clear(&row->blanks);
}

static void take_piece(const Walk *w, const ReplyPiece *p, int shows_reasoning)
{
    switch (p->kind) {
    case REPLY_REASONING:
        if (shows_reasoning) add_to(w, ITEM_REASONING, p->text, p->len);
        break;
    case REPLY_CONTENT:
        add_to(w, ITEM_TEXT, p->text, p->len);
        break;
    case REPLY_CALL_START:
        begin_item(w, ITEM_CALL, p->text, p->len);
        break;
    case REPLY_ARGUMENTS:
        add_text(w, p->text, p->len);
        break;
    case REPLY_CALL_END:
    case REPLY_CALL_CUT:
        end_item(w, p->kind == REPLY_CALL_CUT);
        break;
    }
}

void item_row_take(ItemRow *row, Answer *a, const ItemSink *sink, void *ctx)
{
    Walk w = {row, sink, ctx};
    for (int i = 0; i < reply_n_pieces(a->reply); i++) {
        ReplyPiece p = reply_piece(a->reply, i);
        take_piece(&w, &p, a->api->reasoning == REASONING_SEPARATE);
    }
    answer_take(a);
    if (a->state == ANSWER_DONE) end_item(&w, a->finish != FINISH_STOP);
}

void item_row_free(ItemRow *row)
{
    strbuf_free(&row->item.name);
    strbuf_free(&row->item.text);
    strbuf_free(&row->blanks);
    strbuf_free(&row->done);
}
