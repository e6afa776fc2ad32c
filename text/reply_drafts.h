/*
 * reply_drafts.h: tool calls inside a think block.
 *
 * Models draft calls while they think (these must not run), and forget </think> before the call
 * they mean (that must run). Which of both a call was is known only when the answer ends, so calls
 * that are complete, well formed and to declared functions are kept until then: the last run of
 * calls with nothing but blanks between them.
 */
#ifndef OFFSHOOT_TEXT_REPLY_DRAFTS_H
#define OFFSHOOT_TEXT_REPLY_DRAFTS_H

#include "text/reply_scan.h"

enum {
    MAX_DRAFT_BYTES = 1 << 20, /* of thought text; past it no call is remembered */
    MAX_DRAFT_NESTING = 8,     /* <tool_call> that were not closed yet */
    MAX_DRAFT_CALLS = 128,     /* in a run */
};

typedef struct ReplyDrafts ReplyDrafts;

ReplyDrafts *reply_drafts_open(const ReplyTools *tools);
void reply_drafts_close(ReplyDrafts *d);

/* Text of the think block, the tags' own text included; then the tag that it ended with. */
void reply_drafts_text(ReplyDrafts *d, const char *text, size_t len);
void reply_drafts_tag(ReplyDrafts *d, ScanTag tag);

/* Calls in the run. */
int reply_drafts_count(const ReplyDrafts *d);

/* Reads the run's calls again, their events go to sink. */
void reply_drafts_replay(ReplyDrafts *d, ScanSink sink);

#endif
