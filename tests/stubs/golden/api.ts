// Written by `rpcstream --stubs typescript`. Do not edit it: write it again when the server changes.
/* eslint-disable */
import type { ImageInput } from "rpcstream";

export type Color = "blue" | "red" | "it's \"grey\"\n";

/**
 * A point.
 */
export interface Point {
  /**
   * in mm
   */
  x: number;
  y: number;
}

/**
 * A point.
 */
export interface PointInput {
  /**
   * in mm
   */
  x: number;
  y?: number;
}

/**
 * The methods of x 1: `new Client<Api>(url)` is a client that knows them.
 */
export interface Api {
  /**
   * Add two numbers.
   *
   * It takes any.
   *
   * Args:
   *     a: the first
   *     b: (default 2)
   */
  "add": {
    params: { a: number | bigint; b?: number | bigint };
    args: [a: number | bigint, b?: number | bigint];
    result: number;
    item: never;
  };
  "class": {
    params: { self: number | bigint };
    args: [self: number | bigint];
    result: number;
    item: never;
  };
  "point": {
    params: { p: PointInput; color: Color };
    args: [p: PointInput, color: Color];
    result: Point;
    item: never;
  };
  "rest": {
    params: { a: number | bigint; [name: string]: unknown };
    args: [a: number | bigint, ...more: number[]];
    result: { [key: string]: number[] };
    item: never;
  };
  "ticks": {
    params: { n: number | bigint };
    args: [n: number | bigint];
    result: number[];
    item: number;
  };
  "vision.detect": {
    params: { photo: ImageInput };
    args: [photo: ImageInput];
    result: Point[];
    item: never;
  };
  "vision.detect.faces": {
    params: { photo: ImageInput };
    args: [photo: ImageInput];
    result: number;
    item: never;
  };
  "weird name!": {
    params: { "a-b": number | bigint };
    args: [number | bigint];
    result: number;
    item: never;
  };
}
