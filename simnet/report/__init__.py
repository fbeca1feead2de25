"""One HTML file that holds an answer: verdict, interactive figures, what is assumed, and how to repeat it."""
