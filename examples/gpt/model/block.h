/*
 * block.h - which tensor of a block is which.
 */
#ifndef GPT_BLOCK_H
#define GPT_BLOCK_H

/* The tensors of a block, in the order in which gpt.c lays them out. */
enum { LN1_W, LN1_B, QKV_W, QKV_B, ATT_W, ATT_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B };

#endif
