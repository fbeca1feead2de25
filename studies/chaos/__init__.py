"""Runs in which one rank is lost at a random moment: what do the others say, and how soon do they end?"""
