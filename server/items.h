/*
 * items.h: an answer as a row of items, one after the other: reasoning, text, calls.
 *
 * Replies of /v1/messages and /v1/responses are such rows, whole or as they grow. What a stream
 * sends and what a whole reply holds come from the same walk over the answer's pieces, so that both
 * say the same.
 */
#ifndef OFFSHOOT_SERVER_ITEMS_H
#define OFFSHOOT_SERVER_ITEMS_H

#include "server/answer.h"

typedef enum { ITEM_REASONING, ITEM_TEXT, ITEM_CALL } ItemKind;

typedef struct {
    ItemKind kind;
    int index;         /* in the row */
    char id[25];       /* 24 hex digits, never the same twice */
    char call_id[25];  /* another such, of a call */
    StrBuf name, text; /* a call's name; all that came so far, of a call its arguments */
    size_t from;       /* of a text: bytes of the answer's content before it */
    int is_cut;        /* it has ended, but is not whole */
} Item;

/* Who is told of a row's growth; begin and more may be NULL. */
typedef struct {
    void (*begin)(void *ctx, const Item *item);
    void (*more)(void *ctx, const Item *item, const char *text, size_t len);
    void (*end)(void *ctx, const Item *item);
} ItemSink;

typedef struct {
    Item item;        /* the last one */
    int is_open;      /* it may still grow */
    int n;            /* items that were begun */
    int n_whole;      /* calls that have ended whole */
    size_t n_content; /* bytes of content that were taken */
    StrBuf blanks;    /* white space that is text as soon as more follows */
    StrBuf done;      /* for the sink: items that have ended, as its reply lists them */
    int n_events;     /* for the sink: events that were numbered */
} ItemRow;            /* zero-initialised */

/*
 * Tells sink what is new in an answer, which counts as taken. When the answer is done, its last
 * item ends. White space alone is no text.
 */
void item_row_take(ItemRow *row, Answer *a, const ItemSink *sink, void *ctx);

void item_row_free(ItemRow *row);

/* 1 when text is nothing but the white space that a row may leave out. */
int item_is_blank(const char *text, size_t len);

#endif
