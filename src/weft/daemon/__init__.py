"""The controller as a service: one loop that writes events down, reduces them and acts; everything else asks it."""
