package main

type eventSet struct{}
